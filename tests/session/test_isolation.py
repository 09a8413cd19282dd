"""What the root of a session can see and change of the host. tests/isolation has the tables of all attempts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside
from tests.homes import Home, open_home
from waypoint.linux.calls.libc import syscall

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay")]

KEYCTL_READ = 11
SESSION_KEYRING = -3
KEY_NAME, KEY = b"waypoint-test", b"a secret of the host"


@pytest.fixture(scope="module")
def place() -> Iterator[Home]:
    """A home with a live session of root, `main`. The home's daemon has inherited a keyring with a key."""
    syscall("add_key", b"user", KEY_NAME, KEY, len(KEY), SESSION_KEYRING)
    with open_home("isolation") as home:
        home.must("shell", "-d", "main", "--user", "root")
        yield home


def test_devices_and_cgroups_of_the_host_are_not_visible(place: Home) -> None:
    devices = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert set(inside(place, "main", "ls /dev").split()) == set(devices.split())
    assert inside(place, "main", "ls -A /sys/fs/cgroup") == ""


def test_files_of_the_host_are_changed_only_in_the_session(place: Home, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    assert inside(place, "main", f"echo after > {file}; rm -rf /etc/hostname; cat {file}") == "after\n"
    assert file.read_text() == "before"


def test_a_key_of_the_hosts_keyring_cannot_be_read(place: Home) -> None:
    key = syscall("add_key", b"user", KEY_NAME, KEY, len(KEY), SESSION_KEYRING)
    read = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); b = ctypes.create_string_buffer(64); "
        f"print(l.syscall(250, {KEYCTL_READ}, {key}, b, 64, 0), b.value)"
    )
    look = f'python3 -c "{read}"; cat /proc/keys'
    for said in (
        place.cli("exec", "-b", "main", "--", look).stdout,
        place.must("run", "-b", "main", "--", "sh", "-c", look).stdout,
    ):
        assert "secret" not in said
        assert said.startswith("-1")
        assert KEY_NAME.decode() not in said
