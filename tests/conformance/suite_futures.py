"""CPython's test_concurrent_futures, as far as it starts processes by spawn and forkserver. ``python -m unittest
suite_futures``. Some builds leave it out: then it runs no test."""

import importlib.util
import unittest

import contestant  # noqa: F401 - installs

PARTS = ("init", "process_pool", "shutdown", "wait", "as_completed", "deadlock")
METHODS = ("*Spawn*", "*Forkserver*")


def names():
    package = importlib.util.find_spec("test.test_concurrent_futures")
    if package is None:
        return []
    if package.submodule_search_locations is None:  # 3.10: one module
        return [package.name]
    return [f"{package.name}.test_{part}" for part in PARTS]


def load_tests(loader, *_):
    loader.testNamePatterns = METHODS
    return unittest.TestSuite(loader.loadTestsFromName(name) for name in names())
