"""The README's block about Ray, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def test_the_block_about_ray_runs(cluster: Any, root: Path, tmp_path: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert blocks, "the README says nothing about Ray"
    environ = {**os.environ, "RAY_ADDRESS": cluster.get_runtime_context().gcs_address}
    for number, block in enumerate(blocks):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2.0" in done.stdout
        assert "no-accelerator" in done.stdout
