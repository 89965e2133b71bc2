"""Declare and decide: layers of rules and a parent's environment give a child's environment, with a reason for each variable.

Pure: nothing below this package asks the operating system anything.
"""
