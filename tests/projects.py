"""A fixture for tests that bring files out of sessions; import it into a conftest."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home

CHANGE = """cd {}; rm -r d; mkdir d; echo new > d/new; sed -i 's/^7$/seven/' text; mv moved there; chmod 600 mode
printf 'a\\0b' > binary; ln -s /nowhere link; ln text same; mkfifo $'\\xff'; chmod 2770 d"""
"""A shell command that changes a project in many ways."""


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder of the machine that sessions see, with files to change."""
    folder = Path(tempfile.mkdtemp(prefix="waypoint-test-", dir="/srv"))
    (folder / "d").mkdir()
    (folder / "d/old").write_text("old\n")
    (folder / "text").write_text("".join(f"{number}\n" for number in range(1, 21)))
    (folder / "moved/in").mkdir(parents=True)
    (folder / "moved/in/file").write_text("1\n")
    (folder / "mode").write_text("m\n")
    yield folder
    shutil.rmtree(folder)


def _listing(folder: Path) -> list[str]:
    files = "find . ! -type d -printf '%p %y %m %U %G %s %t %n %l\\n'"
    folders = "find . -type d -printf '%p %m %U %G %t\\n'"  # overlayfs and the machine count their links differently
    script = f"({files}; {folders}) | LC_ALL=C sort; md5sum text d/*"
    return ["sh", "-c", f"cd {folder} && {script}"]


def beside(home: Home) -> list[Path]:
    """Folders that applies of this home have left beside the files of the machine."""
    return [path for path in Path("/").glob(".waypoint-*") if (home.path / "applied" / path.name[10:]).exists()]


def listed_in(home: Home, branch: str, folder: Path) -> bytes:
    """The files of the folder as the session sees them, with attributes and times, and the content of some."""
    return home.must("run", "-b", branch, "--", *_listing(folder)).raw


def listed(folder: Path) -> bytes:
    """The same of the machine."""
    return subprocess.run(_listing(folder), check=True, capture_output=True).stdout
