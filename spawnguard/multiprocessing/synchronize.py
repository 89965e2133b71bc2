"""``multiprocessing.synchronize`` itself, under the name that a program has which changed its import."""

import sys
from multiprocessing import synchronize

sys.modules[__name__] = synchronize
