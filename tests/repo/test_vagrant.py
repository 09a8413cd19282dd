"""Vagrant accepts the description in vagrant/, with all options of the provider."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.places import ROOT


def validate(folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["vagrant", "validate"],
        cwd=folder,
        env={**os.environ, "VAGRANT_HOME": str(home), "VAGRANT_DEFAULT_PROVIDER": "libvirt"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.requires("vagrant")
def test_vagrant_finds_the_description_valid(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "vagrant", tmp_path / "vagrant")
    done = validate(folder, tmp_path / "home")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.requires("vagrant")
def test_vagrant_would_notice_a_wrong_option(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "vagrant", tmp_path / "vagrant")
    file = folder / "Vagrantfile"
    file.write_text(file.read_text().replace("machine.memory", "machine.memmory"))
    assert "memmory" in validate(folder, tmp_path / "home").stderr
