"""``multiprocessing.queues`` itself, under the name that a program has which changed its import."""

import sys
from multiprocessing import queues

sys.modules[__name__] = queues
