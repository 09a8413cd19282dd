"""A home and a CRIU below /tmp. CRIU makes folders in /tmp, which remain if it is killed. So the daemon runs each CRIU
with a private /tmp, in which CRIU must still find its files.
"""

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.homes import SMALL_POOL, open_home
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("overlay", "criu", "cgroup2")]

IN_CREATE, EVENT_BYTES = 0x100, 16  # linux/inotify.h; the name comes after an event's first 16 bytes


@pytest.fixture
def below_tmp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="waypoint-", dir="/tmp") as folder:
        yield Path(folder)


@contextlib.contextmanager
def watched(folder: str) -> Iterator[Callable[[], set[str]]]:
    """Yield a function that returns all names created in `folder` since the start of the block, even removed ones."""
    libc = ctypes.CDLL(None)
    inotify = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    assert libc.inotify_add_watch(inotify, os.fsencode(folder), IN_CREATE) >= 0
    made: set[str] = set()

    def names() -> set[str]:
        with contextlib.suppress(BlockingIOError):
            while events := os.read(inotify, 1 << 16):
                while events:
                    end = EVENT_BYTES + int.from_bytes(events[12:EVENT_BYTES], "little")
                    made.add(os.fsdecode(events[EVENT_BYTES:end].rstrip(b"\0")))
                    events = events[end:]
        return made

    try:
        yield names
    finally:
        os.close(inotify)


def test_a_criu_finds_what_it_needs_below_tmp_and_makes_no_folder_there(below_tmp: Path, tmp_path: Path) -> None:
    """The home and an interpreter lie below /tmp. CRIU is a script for it: first outside of /tmp, then below /tmp."""
    interpreter = shutil.copy(os.path.realpath("/bin/sh"), below_tmp / "interpreter")
    with open_home(within=below_tmp, pool=SMALL_POOL) as home, watched("/tmp") as made:
        client = Client(home.path)
        session = client.start("main")
        for number, place in enumerate((tmp_path, below_tmp)):
            criu = place / "criu"
            criu.write_text(f'#!{interpreter}\nexec {os.environ["WAYPOINT_CRIU"]} "$@"\n')
            criu.chmod(0o755)
            session.exec(f"kept={number}")
            home.must("daemon", "stop")  # the next daemon uses the other CRIU
            home.must("checkpoint", f"c{number}", "--tier", "live", "-b", "main", env={"WAYPOINT_CRIU": str(criu)})
            (fork,) = client.fork(f"c{number}", f"f{number}")
            assert fork.exec("echo $kept").output == b"%d\n" % number
        assert not [name for name in made() if name.startswith(".criu.mntns.")]
