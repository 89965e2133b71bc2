"""CPython's test_multiprocessing_spawn, which some builds leave out. ``python -m unittest suite_spawn``."""

import contestant
from test._test_multiprocessing import install_tests_in_module_dict

install_tests_in_module_dict(globals(), "spawn")
WithProcessesTestProcess.test_parent_process = contestant.surviving(WithProcessesTestProcess.test_parent_process)  # noqa: F821
