"""``multiprocessing.dummy`` itself, under the name that a program has which changed its import."""

import sys
from multiprocessing import dummy

sys.modules[__name__] = dummy
