from torch import BUILD

cuda = None if BUILD in ("cpu", "rocm", "rocm6") else "13.0"
hip = {"rocm": "7.0.1", "rocm6": "6.4.2"}.get(BUILD)
