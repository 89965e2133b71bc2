"""``multiprocessing.shared_memory`` itself; the resource tracker that it needs is started by us, and so clean."""

import sys
from multiprocessing import shared_memory

from ._cpython import check
from .launch import tracker_fd

check()
tracker_fd()
sys.modules[__name__] = shared_memory
