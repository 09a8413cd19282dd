"""A program in memory that cannot be changed."""

import os
import subprocess
import sys

import pytest

from tests.places import ROOT
from waypoint.linux.calls import sealed

WITHOUT = """
import pathlib, subprocess, sys
from waypoint.launch.launcher_link import Launcher
from waypoint.model.errors import HostLacks
setting = pathlib.Path("/proc/sys/vm/memfd_noexec")
setting.write_text("2")
try:
    Launcher().open()
except HostLacks as error:
    print(error)
    subprocess.run(error.next_step.split(), check=True, stdout=subprocess.DEVNULL)
from waypoint.linux.calls import sealed
with sealed.copy_of("/bin/true") as copy:
    print(subprocess.run(["true"], executable=copy).returncode)
"""


def test_a_sealed_copy_runs_and_cannot_be_changed() -> None:
    with sealed.copy_of("/bin/echo") as copy:
        assert (
            subprocess.run(["echo", "it runs"], executable=copy, capture_output=True, check=True).stdout == b"it runs\n"
        )
        with pytest.raises(PermissionError):
            os.truncate(copy, 0)
        fd = os.open(copy, os.O_RDWR) if os.geteuid() == 0 else -1  # root may open it; the seals refuse writing
        if fd >= 0:
            with pytest.raises(PermissionError):
                os.write(fd, b"other")
            os.close(fd)


@pytest.mark.privileged
def test_the_error_where_programs_in_memory_are_forbidden_says_how_to_allow_them() -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", WITHOUT]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == (
        "cannot start the launcher: Permission denied: vm.memfd_noexec forbids programs in memory\n"
        "  next: sysctl vm.memfd_noexec=1\n0\n"
    ), done.stderr
