"""Runs of pytest within a test, on tests that were written for it, with the shared conftest."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.places import ROOT

TIMEOUT_S = 100.0  # a run of pytest with workers, beside others of them


def write_trial(folder: Path, source: str, name: str = "trial") -> Path:
    """The file `test_NAME.py` with this source, which may be indented as a whole."""
    file = folder / f"test_{name}.py"
    file.write_text(textwrap.dedent(source))
    return file


def run_trial(folder: Path, *options: str, env: dict[str, str] | None = None, **how: Any) -> Any:
    """Run all tests in `folder`, privileged ones too; `env` is added to the environment. A CompletedProcess of text.

    Raises TimeoutExpired after TIMEOUT_S.
    """
    usual = ["-c", f"{ROOT}/pyproject.toml", "--rootdir", str(folder), "-m", ""]
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WAYPOINT_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *usual, *plugins, *options, *sorted(map(str, folder.glob("test_*.py")))],
        cwd=ROOT,
        env={**kept, "PYTEST_DEBUG_TEMPROOT": str(folder), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        **how,
    )
