"""``multiprocessing.connection`` itself, under the name that a program has which changed its import."""

import sys
from multiprocessing import connection

sys.modules[__name__] = connection
