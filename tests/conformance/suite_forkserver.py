"""CPython's test_multiprocessing_forkserver, which some builds leave out. ``python -m unittest suite_forkserver``."""

import contestant
from test._test_multiprocessing import install_tests_in_module_dict

install_tests_in_module_dict(globals(), "forkserver")
WithProcessesTestProcess.test_parent_process = contestant.surviving(WithProcessesTestProcess.test_parent_process)  # noqa: F821
