"""``multiprocessing.reduction`` itself, under the name that a program has which changed its import."""

import sys
from multiprocessing import reduction

sys.modules[__name__] = reduction
