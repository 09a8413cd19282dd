"""What a session's root finds of the host, changes of it and installs: the host's side is looked at afterwards.

What is refused, and what must work, is in tests/isolation: two tables.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home, open_home
from waypoint.linux.calls.libc import syscall

INSTALL_S = 300.0  # packages come from far away

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay")]

KEYCTL_READ = 11
SESSION_KEYRING = -3
KEY_NAME, KEY = b"waypoint-test", b"a secret of the host"

_GET = "apt-get install -yqq sl >/dev/null"
FROM_FAR = {
    "apt-get": (f"{_GET} || {{ apt-get update -qq && {_GET}; }} && dpkg -s sl", "/usr/games/sl"),
    "pip": ("python3 -m venv /tmp/v && /tmp/v/bin/pip install -q six && /tmp/v/bin/python -c 'import six'", "/tmp/v"),
    "npm": (
        "mkdir /tmp/n && npm install --no-audit --cafile /etc/ssl/certs/ca-certificates.crt --prefix /tmp/n is-number",
        "/tmp/n/node_modules/is-number",
    ),
}
"""What is installed from the registries of the world, and what it makes."""


@pytest.fixture(scope="module")
def place() -> Iterator[Home]:
    """A home with a live session of root, `main`. Its daemon has inherited a keyring with a key."""
    syscall("add_key", b"user", KEY_NAME, KEY, len(KEY), SESSION_KEYRING)
    with open_home("isolation") as home:
        home.must("shell", "-d", "main", "--user", "root")
        yield home


def inside(home: Home, text: str, branch: str = "main") -> tuple[int, str]:
    done = home.cli("exec", "-b", branch, "--", text)
    return done.code, done.stdout


def test_no_cgroup_can_be_entered(place: Home) -> None:
    assert inside(place, "find /sys/fs/cgroup -name cgroup.procs -writable") == (0, "")


def test_there_are_no_host_devices_and_no_disk(place: Home) -> None:
    _code, said = inside(place, "ls /dev")
    expected = {
        "fd",
        "full",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
    }
    assert set(said.split()) == expected


def test_files_of_the_host_are_changed_only_in_the_session(place: Home, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    code, said = inside(place, f"echo after > {file}; rm -rf /etc/hostname; cat {file}")
    assert (code, said) == (0, "after\n")
    assert file.read_text() == "before"


def test_the_hosts_cgroups_are_not_there(place: Home) -> None:
    code, said = inside(place, "ls -A /sys/fs/cgroup | wc -l")
    assert (code, said.strip()) == (0, "0")


def test_a_key_of_the_hosts_keyring_is_not_read(place: Home) -> None:
    key = syscall("add_key", b"user", KEY_NAME, KEY, len(KEY), SESSION_KEYRING)
    read = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); b = ctypes.create_string_buffer(64); "
        f"print(l.syscall(250, {KEYCTL_READ}, {key}, b, 64, 0), b.value)"
    )
    look = f'python3 -c "{read}"; cat /proc/keys'
    for said in (inside(place, look)[1], place.must("run", "-b", "main", "--", "sh", "-c", look).stdout):
        assert "secret" not in said
        assert said.startswith("-1")
        assert KEY_NAME.decode() not in said


@pytest.fixture(scope="module")
def online(place: Home) -> Iterator[str]:
    """A session with the host's network, since a private one has no way out."""
    place.must("shell", "-d", "net", "--user", "root", "--net", "host")
    yield "net"
    place.must("stop", "net", "--discard")


@pytest.mark.soak(part="workloads")
@pytest.mark.requires("network")
@pytest.mark.parametrize("what", ["apt-get", "pip", pytest.param("npm", marks=pytest.mark.requires("npm"))])
def test_packages_install_inside_and_not_on_the_host(place: Home, online: str, what: str) -> None:
    command, made = FROM_FAR[what]
    assert not os.path.exists(made)
    done = place.cli("exec", "-b", online, "--", f"{{ {command}; }} && test -e {made}", timeout_s=INSTALL_S)
    assert done.code == 0, done.stdout
    assert not os.path.exists(made)
