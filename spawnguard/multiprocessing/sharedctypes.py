"""``multiprocessing.sharedctypes`` itself, under the name that a program has which changed its import."""

import sys
from multiprocessing import sharedctypes

sys.modules[__name__] = sharedctypes
