"""Programs run with and without the bootstrap, for the tests of what it does and of what it must not do.

Loaded by ``tests/conftest.py`` as the fixture ``bootstrap``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spawnguard.plan import bootstrap, rundir
from spawnguard.process import reports

FAKES = Path(__file__).parent / "process" / "fake_torch"
TEXT = "expandable_segments:True"


class Done:
    """What a program did: the same fields for a run with the bootstrap and for one without."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Done) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"status {self.status}, out {self.out!r}, err {self.err!r}"


class Bootstrap:
    """One plan and its run directory under a temporary home; ``environ`` is what the user's shell has."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp = tmp_path
        self.home = tmp_path / "home"
        self.home.mkdir()
        self.log = tmp_path / "torch.log"
        self.environ: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PYTHONPATH": str(FAKES),
            "FAKE_TORCH_LOG": str(self.log),
            "LC_ALL": "C.UTF-8",
        }
        self.run_dir = rundir.make(None, str(tmp_path / "run"), self.environ)

    def plan(self, text: str = TEXT, *, backend: str = "cuda", stripped: Sequence[str] = (), **more: Any) -> str:
        """``SPAWNGUARD_PLAN`` for this settings string; ``stripped`` options are to be at their default."""
        declared: dict[str, str | None] = dict(piece.split(":", 1) for piece in text.split(",") if piece)
        declared.update(dict.fromkeys(stripped))
        variable = {"npu": "PYTORCH_NPU_ALLOC_CONF"}.get(backend, "PYTORCH_CUDA_ALLOC_CONF")
        allocator = {"backend": backend, "guessed": False, "variable": variable, "text": text, "declared": declared}
        return bootstrap.plan_text(self.run_dir, allocator, more or None)

    def injected(self, plan: str | None = None, **variables: str | None) -> dict[str, str]:
        """The child's environment: what the launcher would hand down, then ``variables`` (None removes)."""
        environ = {**self.environ, "PYTORCH_CUDA_ALLOC_CONF": TEXT}
        return changed(bootstrap.inject(environ, self.plan() if plan is None else plan), variables)

    def run(self, argv: Sequence[str], environ: Mapping[str, str], **how: Any) -> Done:
        return Done(
            subprocess.run(argv, env=environ, capture_output=True, timeout=100, check=False, cwd=self.tmp, **how)
        )

    def compare(self, argv: Sequence[str], variables: Mapping[str, str | None] | None = None, **how: Any) -> Done:
        """Run without, then with the bootstrap; they may not differ."""
        variables = {"PYTORCH_CUDA_ALLOC_CONF": TEXT, **(variables or {})}
        without = self.run(argv, changed(self.environ, variables), **how)
        injected = self.run(argv, self.injected(**variables), **how)
        assert injected == without
        return injected

    @property
    def reports(self) -> list[dict[str, Any]]:
        return reports.read(self.run_dir)

    @property
    def outcomes(self) -> list[dict[str, str]]:
        """setting -> outcome, per process that reported."""
        return [{each["setting"]: each["outcome"] for each in report["settings"]} for report in self.reports]

    @property
    def calls(self) -> list[str]:
        """What the stand-in was asked to do, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []


def changed(environ: Mapping[str, str], variables: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**environ, **variables}
    return {name: value for name, value in merged.items() if value is not None}
