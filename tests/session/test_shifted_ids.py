"""The user and group ids of a session are shifted to host ids that no user has. Its files on disk have the owners that
the session sees.

The homes have no seccomp filter, so that only the ids protect the host. Sessions with the host's ids (`unshifted`) can
do what the shifted sessions must not be able to do.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import begin, inside
from tests.acceptance.small_base import make_base
from tests.homes import Home, open_home
from tests.waiting import wait_until
from waypoint.client import Client
from waypoint.linux.calls.libc import syscall
from waypoint.linux.storage import mounts
from waypoint.model.records import NOBODY, SHIFTED_IDS

KEYCTL_GET_KEYRING_ID, KEYCTL_LINK = 0, 8
USER_KEYRING = -4
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
FAR_ID = 1_234_567_890  # large directories (LDAP) have such ids

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "idmapped")]

COUNTER = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 80))
one = socket.create_connection(("127.0.0.1", 80))
other, _ = server.accept()
count = 0
while True:
    count += 1
    one.sendall(b"%d" % count)
    with open("/tmp/count.new", "wb") as file:
        file.write(other.recv(100))
    os.rename("/tmp/count.new", "/tmp/count")
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def shifted() -> Iterator[Home]:
    with open_home("shifted", host_ids=False, seccomp=False) as home:
        yield home


@pytest.fixture(scope="module")
def unshifted() -> Iterator[Home]:
    with open_home("unshifted", host_ids=True, seccomp=False) as home:
        yield home


def upper(home: Home, session: dict[str, Any]) -> Path:
    """Return the upper folder, on disk, of the session's root overlay."""
    return Path(f"/proc/{Client(home.path).status().pid}/root{home.path}/pool/{session['id']}/m0/upper")


def owner(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


def as_its_root(pid: int, text: str) -> subprocess.CompletedProcess[str]:
    """Run `text` as the root of a session, in its user namespace, but with the mounts of the host."""
    words = ["nsenter", f"--user=/proc/{pid}/ns/user", "--setuid=0", "--setgid=0", "--", "sh", "-c", text]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def uid_map(pid: int) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in Path(f"/proc/{pid}/uid_map").read_text().splitlines()]


def count(home: Home, branch: str) -> int:
    return int(inside(home, branch, "cat /tmp/count"))


def start_counting(home: Home, branch: str) -> None:
    inside(home, branch, f"python3 -c {shlex.quote(COUNTER)} </dev/null >/dev/null 2>&1 &")
    wait_until(lambda: home.cli("exec", "-b", branch, "--", "test -s /tmp/count").code == 0, "the program counts")


def test_all_sessions_of_a_home_have_one_range_of_ids(shifted: Home) -> None:
    found = [begin(shifted, branch) for branch in ("one", "two")]
    assert [session["ids"] for session in found] == ["shifted", "shifted"]
    maps = [uid_map(session["pid"]) for session in found]
    assert maps[0] == maps[1]
    ((inner, first, size),) = maps[0]
    assert (inner, size) == (0, SHIFTED_IDS)
    assert json.loads((shifted.path / "config.json").read_text())["ids"] == {"first": first}
    assert first > max(int(line.split(":")[2]) for line in Path("/etc/passwd").read_text().splitlines())
    status = Path(f"/proc/{found[0]['pid']}/status").read_text()
    assert f"Uid:\t{first}\t{first}\t{first}\t{first}" in status
    assert len({os.readlink(f"/proc/{session['pid']}/ns/user") for session in found}) == 2


def test_root_of_a_session_cannot_write_kernel_settings_even_unmasked(shifted: Home, unshifted: Home) -> None:
    pattern = CORE_PATTERN.read_text()
    write = f"printf %s {shlex.quote(pattern)} >{CORE_PATTERN}"  # the same value: the test does no harm
    assert as_its_root(begin(unshifted, "main")["pid"], write).returncode == 0  # unshifted root can write
    done = as_its_root(begin(shifted, "main")["pid"], write)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    assert CORE_PATTERN.read_text() == pattern
    for path in ("/proc/sys", "/sys/devices/system", "/proc/sys/kernel/core_pattern"):
        assert inside(shifted, "main", f"stat -c %u {path}") == f"{NOBODY}\n"


def test_root_of_a_session_cannot_use_the_keyring_of_the_hosts_root(shifted: Home, unshifted: Home) -> None:
    keyring = syscall("keyctl", KEYCTL_GET_KEYRING_ID, USER_KEYRING, 1)
    link = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); "
        f"print(l.syscall(250, {KEYCTL_LINK}, {keyring}, -3), ctypes.get_errno())"
    )
    for home, answer in ((unshifted, "0 0\n"), (shifted, "-1 13\n")):  # EACCES
        begin(home, "keys")
        assert home.must("run", "-b", "keys", "--", "python3", "-c", link).stdout == answer
    assert inside(shifted, "keys", "cat /proc/keys") == ""


def test_files_on_disk_have_the_owners_that_the_session_sees(shifted: Home, person: Person, tmp_path: Path) -> None:
    session = begin(shifted, "owners", "--bind", f"{tmp_path}:/shared")
    inside(
        shifted,
        "owners",
        f"touch /opt/of-root /opt/of-33 /shared/of-33; chown 33:33 /opt/of-33 /shared/of-33;"
        f"su {person.name} -s /bin/sh -c 'touch /tmp/of-user'; ln -s x /opt/link; chown -h 7:8 /opt/link;"
        f"cp -p /usr/bin/id /opt/id; chown {person.uid} /opt/id; chmod 4755 /opt/id",
    )
    found = upper(shifted, session)
    assert owner(found / "opt/of-root") == (0, 0)
    assert owner(found / "opt/of-33") == (33, 33)
    assert owner(found / "opt/link") == (7, 8)
    assert owner(found / "tmp/of-user") == (person.uid, person.gid)
    assert owner(tmp_path / "of-33") == (33, 33)
    assert inside(shifted, "owners", "stat -c %u:%g /opt/of-33 /opt/link /etc /usr/bin/su /dev/null") == (
        "33:33\n7:8\n0:0\n0:0\n0:0\n"
    )
    assert inside(shifted, "owners", "/opt/id -u; cd /; su daemon -s /bin/sh -c '/opt/id -u'") == (
        f"{person.uid}\n{person.uid}\n"
    )


def test_a_user_with_an_id_above_the_range_is_mapped(shifted: Home) -> None:
    session = begin(shifted, "far", "--user", str(FAR_ID))
    assert inside(shifted, "far", "id -u; touch /tmp/mine; stat -c %u:%g /tmp/mine") == f"{FAR_ID}\n{FAR_ID}:{FAR_ID}\n"
    assert owner(upper(shifted, session) / "tmp/mine") == (FAR_ID, FAR_ID)
    (_range, (inner, outer, size)) = uid_map(session["pid"])
    assert (inner, size) == (FAR_ID, 1)
    assert outer == _range[1] + SHIFTED_IDS
    shifted.must("checkpoint", "far-away", "-b", "far")
    shifted.must("fork", "far-away", "far-2")
    assert inside(shifted, "far-2", "id -u; stat -c %u /tmp/mine") == f"{FAR_ID}\n{FAR_ID}\n"


@pytest.mark.requires("criu")
@pytest.mark.parametrize("user", [pytest.param("root", marks=pytest.mark.soak(part="matrix")), "person"])
def test_processes_with_shifted_ids_are_captured_forked_and_restored(shifted: Home, person: Person, user: str) -> None:
    branch = f"live-{user}"
    first = begin(shifted, branch, "--user", person.name if user == "person" else "root")
    start_counting(shifted, branch)
    shm = "umask 077; echo secret >/dev/shm/mine; chown 33:33 /dev/shm/mine 2>/dev/null; mkdir -m 700 /dev/shm/dir"
    inside(shifted, branch, shm)
    facts = shifted.must("checkpoint", f"{branch}-c", "-b", branch, "--json").json()
    assert facts["tier"] == "live"
    at = count(shifted, branch)
    look = "stat -c %u:%g:%a /dev/shm /dev/shm/mine /dev/shm/dir; id -u; echo $HOME"
    seen = inside(shifted, branch, look)
    kept = shifted.path / "hot" / facts["capture"] / "shm"
    mine = (33, 33) if user == "root" else (person.uid, person.gid)
    assert owner(kept / "mine") == mine  # the owner that the session sees
    images = shifted.path / "hot" / facts["capture"] / "images"
    readable = [path.name for path in images.iterdir() if path.stat().st_mode & 0o077]
    assert readable == [
        name for name in readable if name.startswith("timens-")
    ]  # clocks, which the session's root reads
    forks = shifted.must("fork", f"{branch}-c", "-n", "4", "--prefix", f"{branch}-f", "--json").json()
    for fork in forks:
        assert uid_map(fork["pid"]) == uid_map(first["pid"])
        assert inside(shifted, fork["branch"], look) == seen
        _expect_counting(shifted, fork["branch"])
    inside(shifted, branch, "rm -r /dev/shm/dir /dev/shm/mine; touch /tmp/later")
    late = count(shifted, branch)
    shifted.must("restore", f"{branch}-c")
    assert inside(shifted, branch, look) == seen
    assert count(shifted, branch) < late + 1000
    _expect_counting(shifted, branch)
    shifted.must("undo", "-b", branch)
    assert inside(shifted, branch, "ls /dev/shm /tmp/later") == "/tmp/later\n\n/dev/shm:\n"
    assert count(shifted, branch) >= at
    _expect_counting(shifted, branch)
    for fork in forks:
        shifted.must("stop", fork["branch"], "--discard")
    shifted.must("stop", branch, "--discard")


def _expect_counting(home: Home, branch: str) -> None:
    before = count(home, branch)
    wait_until(lambda: count(home, branch) > before, f"{branch} still counts")


@pytest.mark.requires("criu")
def test_restored_files_have_their_owners(shifted: Home) -> None:
    session = begin(shifted, "only")
    make = (
        "mkdir -p /opt/o/d; touch /opt/o/d/f; chown -R 33:34 /opt/o/d; chmod 4750 /opt/o/d/f; mkfifo /opt/o/p;"
        "ln -s x /opt/o/l; chown -h 9 /opt/o/l; cp /usr/bin/id /opt/o/c; setcap cap_net_raw=ep /opt/o/c"
    )
    inside(shifted, "only", make)
    shifted.must("checkpoint", "owned", "-b", "only")
    look = "cd /opt/o; stat -c '%n %u:%g:%a:%F' d d/f p l c /etc/passwd; getcap c"
    before = inside(shifted, "only", look)
    inside(shifted, "only", "rm -rf /opt/o /etc/passwd; mkdir /opt/o; chown 70:70 /opt/o")
    shifted.must("restore", "owned", "--only", "files")
    assert inside(shifted, "only", look) == before
    assert owner(upper(shifted, session) / "opt/o/d/f") == (33, 34)


@pytest.mark.soak(part="walls")
@pytest.mark.requires("criu")
def test_processes_captured_with_host_ids_are_restored_with_host_ids() -> None:
    """A session that gets a new shell instead has shifted ids, and sees the same owners."""
    with open_home("before", host_ids=True) as home:
        begin(home, "old")
        start_counting(home, "old")
        inside(home, "old", "touch /opt/f; chown 33:44 /opt/f; echo x >/dev/shm/x; chown 33 /dev/shm/x")
        assert home.must("checkpoint", "kept", "-b", "old", "--json").json()["tier"] == "live"
        home.must("stop", "--files", "old")
        home.must("daemon", "stop")
        config = json.loads((home.path / "config.json").read_text())
        del config["ids"]  # homes of earlier versions lack this setting
        (home.path / "config.json").write_text(json.dumps(config))
        look = "stat -c %u:%g /opt/f; cat /proc/self/uid_map"
        whole = "33:44\n         0          0 4294967295\n"
        done = home.must("restore", "kept")
        assert "captured" in home.must("ps", "--json").json()[0]["why_host_ids"], done.stderr
        home.must("fork", "kept", "copy")
        for branch in ("old", "copy"):
            assert inside(home, branch, look) == whole
            assert inside(home, branch, "stat -c %u /dev/shm/x") == "33\n"
            _expect_counting(home, branch)
        home.must("checkpoint", "kept-2", "-b", "copy")
        layers = home.must("show", "kept-2", "--json").json()["layers"]
        assert layers["processes"]["ids"] == "host"
        home.must("restore", "kept", "-b", "new", "--only", "files")
        assert inside(home, "new", "stat -c %u:%g /opt/f") == "33:44\n"
        (session,) = (one for one in home.must("ps", "--json").json() if one["branch"] == "new")
        assert (session["ids"], session["why_host_ids"]) == ("shifted", None)
        assert uid_map(session["pid"])[0][1] == json.loads((home.path / "config.json").read_text())["ids"]["first"]


def test_a_file_system_that_cannot_be_idmapped_is_reported(shifted: Home, tmp_path: Path) -> None:
    """A session on ramfs, which cannot be idmapped, starts and reports that it has no ids of its own."""
    place = tmp_path / "base"
    place.mkdir()
    mounts.mount("ramfs", str(place), "ramfs", 0)
    try:
        base = make_base(place / "of")
        done = shifted.must("shell", "weak", "-d", "--json", "--user", "root", "--base", str(base))
        assert done.json()["ids"] == "host"
        assert f"{base} cannot be mounted with other owners" in done.json()["why_host_ids"]
        assert "without its own user ids" in done.stderr
        shifted.must("checkpoint", "weak-1", "-b", "weak")
        shown = shifted.must("show", "weak").stdout
        assert f"the machine's: {base} cannot" in shown
        assert done.stderr.count("\n") == 1, done.stderr
    finally:
        shifted.cli("stop", "weak", "--discard")
        mounts.umount(str(place), mounts.MNT_DETACH)


@pytest.mark.soak(part="walls")
def test_doctor_reports_whether_ids_are_shifted(shifted: Home, unshifted: Home) -> None:
    for home, state in ((shifted, "ok"), (unshifted, "degraded")):
        rows = {row["capability"]: row for row in home.cli("doctor", "--json").json()}
        assert rows["user ids of sessions"]["state"] == state
        assert bool(rows["user ids of sessions"]["why"]) == (state == "degraded")
