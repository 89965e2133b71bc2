from torch import BUILD

cuda = None if BUILD in ("cpu", "rocm") else "13.0"
hip = "7.0.1" if BUILD == "rocm" else None
