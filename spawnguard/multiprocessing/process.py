"""``multiprocessing.process`` itself, under the name that a program has which changed its import."""

import sys
from multiprocessing import process

sys.modules[__name__] = process
