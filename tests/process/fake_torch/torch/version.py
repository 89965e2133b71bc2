from torch import BUILD

cuda = "13.0" if BUILD == "cuda" else None
hip = "7.0.1" if BUILD == "rocm" else None
