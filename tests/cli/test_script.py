"""The installed script `waypoint`, in the directory layouts that installers make."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from waypoint import __version__

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def install(prefix: Path, packages: str) -> Path:
    """Install below `prefix` as pip does, but with links instead of copies; return the script's path."""
    (prefix / "bin").mkdir(parents=True)
    script = Path(shutil.copy(ROOT / "waypoint/cli/script/waypoint", prefix / "bin/waypoint"))
    for name in ("python3", VERSION):
        (prefix / "bin" / name).symlink_to(sys.executable)
    folder = prefix / f"lib/{VERSION}" / packages
    folder.mkdir(parents=True)
    for name in ("waypoint", "shellwrap"):
        (folder / name).symlink_to(ROOT / name)
    for path in Path(sys.executable).parent.parent.glob("lib/python*/site-packages/click*"):
        (folder / path.name).symlink_to(path)
    return script


def version_by(*command: str, **variables: str) -> str:
    env = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=True).stdout


EXPECTED = f"waypoint, version {__version__}\n"


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_the_script_finds_the_package_beside_itself(tmp_path: Path, packages: str) -> None:
    assert version_by(str(install(tmp_path / "p", packages)), "--version") == EXPECTED


def test_the_script_starts_python_without_site(tmp_path: Path) -> None:
    script = install(tmp_path / "p", "site-packages")
    recorder = tmp_path / "p/bin" / VERSION
    recorder.unlink()
    recorder.write_text('#!/bin/sh\necho "$@"\n')
    recorder.chmod(0o755)
    words = version_by(str(script), "exec", "--", "a b").split(" ", 3)
    assert words[:2] == ["-I", "-S"]
    assert words[2].endswith("/waypoint/cli/main.py")
    assert words[3] == "exec -- a b\n"


def test_the_script_can_be_a_link_to_a_link(tmp_path: Path) -> None:
    script = install(tmp_path / "p", "site-packages")
    (tmp_path / "far").symlink_to(script)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/waypoint").symlink_to("../far")
    assert version_by(str(tmp_path / "d/waypoint"), "--version") == EXPECTED


def test_the_script_works_from_path(tmp_path: Path) -> None:
    script = install(tmp_path / "p", "site-packages")
    path = f"{script.parent}:{os.environ['PATH']}"
    assert version_by("/bin/sh", "-c", "waypoint --version", PATH=path) == EXPECTED
    assert version_by("/bin/sh", "-c", f"cd {script.parent} && sh waypoint --version", PATH=path) == EXPECTED


def test_words_are_passed_unchanged(tmp_path: Path) -> None:
    script = install(tmp_path / "p", "site-packages")
    done = subprocess.run([script, "exec", "--timeout", "a  b'\"$x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a  b'\"$x" in done.stderr.replace("\\", "")
