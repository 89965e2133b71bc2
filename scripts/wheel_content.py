"""Says what the wheel lacks or has too much of, compared with the package's directory: wheel_content.py WHEEL."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(wheel: str) -> int:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("spawnguard/")}
    files = (path for path in (ROOT / "spawnguard").rglob("*") if path.is_file())
    wanted = {path.relative_to(ROOT).as_posix() for path in files if path.suffix not in {".pyc", ".pyo"}}
    for name in sorted(wanted - packed):
        print(f"not in the wheel: {name}")
    for name in sorted(packed - wanted):
        print(f"only in the wheel: {name}")
    print(f"{len(packed)} files")
    return 1 if wanted != packed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
