"""Users whom root has allowed to use a home may bind the folders that they can use on the host, with their own rights.

The binds that are refused in such a home are allowed in a home that trusts its user fully.
"""

import contextlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.people import Person
from tests.collecting import collecting
from tests.homes import Home, open_home
from tests.session.let_in import NOT_ALLOWED, refused, stop, succeeds
from waypoint.launch.externals import FromOutside
from waypoint.launch.spec import BindMount, Identity, StartSpec
from waypoint.linux.storage import mounts
from waypoint.linux.storage.beneath import MountPlace

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "public-checkout")]


@pytest.fixture(scope="module")
def shifted(person: Person) -> Iterator[Home]:
    """A home that the person may use, and whose sessions have shifted ids."""
    with open_home("shifted-users", host_ids=False) as home:
        home.must("setup", "--user", person.name)
        yield home


@pytest.fixture
def folders(person: Person, tmp_path: Path) -> Path:
    """Folders with different rights: the person owns `own`; only root may use `roots`; everybody may use `hidden/open`,
    but only root can enter `hidden`; the person's group may write to `group`; everybody may read `read`.
    """
    for name, mode in (("own", 0o755), ("roots", 0o700), ("hidden", 0o700), ("hidden/open", 0o777), ("read", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        (tmp_path / name / "file").write_text(f"{name}\n")
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/") and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o11)
    for path in (tmp_path / "own", tmp_path / "own/file"):
        os.chown(path, person.uid, person.gid)
    (tmp_path / "group").mkdir()
    os.chown(tmp_path / "group", 0, person.gid)
    (tmp_path / "group").chmod(0o2775)
    (tmp_path / "link").symlink_to(tmp_path / "roots")
    return tmp_path


BINDS = {
    "own": ("own:{mnt}", ""),
    "own, read only": ("own:{mnt}:ro", ""),
    "own, at a new place": ("own:/wptest-new/place", ""),
    "own, at home": ("own:{home}/place", ""),
    "of a group of theirs": ("group:{mnt}", ""),
    "for all to read": ("read:{mnt}:ro", ""),
    "root's to read, to be written": ("read:{mnt}", "may not write to it"),
    "root's": ("roots:{mnt}:ro", "may not read it"),
    "root's passwords": ("/etc/shadow:/wptest-new/file", "/wptest-new/file: permission denied: /etc/shadow; "),
    "behind a folder of root's": ("hidden/open:{mnt}:ro", "no such file or directory on this machine"),
    "a link to root's": ("link:{mnt}:ro", "may not read it"),
    "own, over /etc/passwd": ("own/file:/etc/passwd", "root's programs trust the files at /etc/passwd"),
    "own, over /usr/src": ("own:/usr/src:ro", "root's programs trust the files at /usr/src"),
    "own, as a new file of /etc": ("own/file:/etc/ld.so.preload:ro", "root's programs trust"),
    "own, as a new folder of libraries": ("own:/lib-of-mine:ro", "root's programs trust"),
    "own, in root's home": ("own:/root/x:ro", "root's programs trust"),
}


@pytest.mark.parametrize("who", ["root", "trusted", "let in"])
def test_nobody_can_bind_a_home(let_in: Home, trusting: Home, person: Person, tmp_path: Path, who: str) -> None:
    """The home, its parent folders, another mount of them, and the control socket cannot be bound."""
    beside = tmp_path / "beside"
    beside.mkdir()
    mounts.bind(str(let_in.path.parent), str(beside))
    places = [Path("/run/waypoint"), let_in.runtime / "api.sock", *let_in.path.parents[-2:-1]]
    if who != "let in":  # root and a trusted user can see these folders
        places += [beside, let_in.path, let_in.path / "config.json"]
    try:
        for place in places:
            words = ("shell", "bound", "-d", "--bind", f"{place}:/srv/new:ro")
            home = trusting if who == "trusted" else let_in
            if who == "root":
                done = home.cli(*words, "--user", "root")
                code, said = done.code, done.stderr
            else:
                asked = person.can(home, *words)
                code, said = asked.returncode, asked.stderr
            assert (code, "it contains a home of Waypoint or its runtime folder\n" in said) == (2, True), (place, said)
            assert "\n  next: bind the other folders in it one by one" in said
    finally:
        mounts.umount(str(beside), mounts.MNT_DETACH)
    home.must("shell", "bound", "-d", "--user", "root", "--bind", f"{tmp_path}:/srv/new")  # follows the advice
    home.must("stop", "bound", "--discard")


def test_proc_and_cgroups_of_the_machine_are_not_bound(let_in: Home) -> None:
    proc = ("it shows the machine's processes\n", "use /proc, which shows the session's")
    groups = ("it shows all cgroups of the machine, including those of other sessions\n", "leave out this --bind\n")
    rows = dict.fromkeys(("/proc", "/proc/sys", "/proc/cpuinfo"), proc)
    rows |= dict.fromkeys(("/sys/fs/cgroup", "/sys/fs/cgroup/."), groups)
    with collecting() as row:
        for place, (why, step) in rows.items():
            with row(place):
                done = let_in.cli("shell", "bound", "-d", "--user", "root", "--bind", f"{place}:/srv/new:ro")
                assert done.code == 2
                assert f"{why}  next: {step}" in done.stderr
    let_in.must("shell", "bound", "-d", "--user", "root")
    let_in.must("stop", "bound", "--discard")


def test_a_user_can_bind_exactly_the_folders_that_they_can_use_on_the_host(
    let_in: Home, trusting: Home, person: Person, folders: Path
) -> None:
    with collecting() as row:
        for what, (words, why) in BINDS.items():
            with row(what):
                text = words.format(mnt="/mnt", home=person.home)
                bind = text if text.startswith("/") else f"{folders}/{text}"
                done = person.can(let_in, "shell", "bound", "-d", "--bind", bind)
                if why:
                    code = 2 if "no such file" in why else NOT_ALLOWED
                    assert (done.returncode, why in done.stderr) == (code, True), done
                    assert succeeds(person.can(trusting, "shell", "bound", "-d", "--bind", bind)) == "bound\n"
                    stop(trusting, "bound")
                else:
                    succeeds(done)
                    stop(let_in, "bound")


@pytest.mark.requires("idmapped")
def test_a_root_in_the_session_has_no_rights_in_a_users_bind(shifted: Home, person: Person, folders: Path) -> None:
    """A program that becomes root in the session (sudo) cannot make files of root on the host. The test enters the
    session as its root from outside.
    """
    make = "cp /usr/bin/id /mnt/id && chown 0:0 /mnt/id; chmod 4755 /mnt/id; touch /mnt/made; cat /mnt/secret"
    (folders / "own/secret").write_text("of root")
    (folders / "own/secret").chmod(0o600)
    bind = ("--bind", f"{folders}/own:/mnt")
    succeeds(person.can(shifted, "shell", "bound", "-d", *bind))
    try:
        succeeds(
            person.can(shifted, "exec", "-b", "bound", "--", "echo mine >/mnt/of-person; mkdir /mnt/d; rmdir /mnt/d")
        )
        assert (folders / "own/of-person").stat().st_uid == person.uid
        done = as_root_inside(shifted, "bound", make)
        assert "Value too large for defined data type" in done.stderr
        assert "of root" not in done.stdout
        assert {path.name for path in (folders / "own").iterdir()} == {"file", "secret", "of-person"}
        # In a session of root, the same commands make files of root on the host.
        shifted.must("shell", "roots-bound", "-d", "--user", "root", *bind)
        shifted.must("exec", "-b", "roots-bound", "--", make)
        found = (folders / "own/id").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o4755)
    finally:
        stop(shifted, "bound")
        shifted.cli("stop", "roots-bound", "--discard")


@pytest.mark.requires("idmapped")
def test_a_bind_that_cannot_be_idmapped_is_refused(shifted: Home, person: Person, folders: Path) -> None:
    """Binds of root are refused, too, unless the home's config.json gives sessions the host's ids."""
    place = folders / "own/ram"
    place.mkdir()
    mounts.mount("ramfs", str(place), "ramfs", 0)
    try:
        os.chown(place, person.uid, person.uid)
        bind = ("--bind", f"{place}:/mnt")
        done = person.can(shifted, "shell", "bound", "-d", *bind)
        assert (done.returncode, f"cannot bind {place}" in done.stderr) == (2, True), done
        assert "next: bind a folder on a file system that supports idmapped mounts" in done.stderr
        succeeds(person.can(shifted, "shell", "bound", "-d", "--bind", f"{folders}/own:/mnt"))
        stop(shifted, "bound")
        refused_root = shifted.cli("shell", "roots-bound", "-d", "--user", "root", *bind)
        assert (refused_root.code, f"cannot bind {place}" in refused_root.stderr) == (2, True), refused_root
        with followed_to_host_ids(shifted, refused_root.stderr):
            assert shifted.must("shell", "roots-bound", "-d", "--json", "--user", "root", *bind).json()["ids"] == "host"
    finally:
        shifted.cli("stop", "roots-bound", "--discard")
        mounts.umount(str(place), mounts.MNT_DETACH)


@contextlib.contextmanager
def followed_to_host_ids(home: Home, said: str) -> Iterator[None]:
    """Follow the advice of a refused bind: in the block, the home's sessions have the host's ids."""
    (written,) = re.findall(rf"write (.*) into {home.path}/config.json, then '.* daemon stop'", said)
    path = home.path / "config.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(before) | json.loads(f"{{{written}}}")))
        home.must("daemon", "stop")
        yield
    finally:
        path.write_text(before)
        home.must("daemon", "stop")


def as_root_inside(home: Home, branch: str, text: str) -> "subprocess.CompletedProcess[str]":
    """Run `text` as the session's root, in its mount namespace."""
    (pid,) = (one["pid"] for one in home.must("ps", "--json").json() if one["branch"] == branch)
    words = ["nsenter", f"--target={pid}", "--user", "--mount", "--setuid=0", "--setgid=0", "--", "sh", "-c", text]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.requires("idmapped")
def test_a_users_bind_has_the_same_rights_in_every_copy(shifted: Home, person: Person, folders: Path) -> None:
    succeeds(person.can(shifted, "shell", "bound", "-d", "--bind", f"{folders}/own:/mnt"))
    succeeds(person.can(shifted, "checkpoint", "bound-cp", "-b", "bound"))
    shifted.must("fork", "bound-cp", "bound-2")  # a fork by root does not change the bind
    succeeds(person.can(shifted, "exec", "-b", "bound", "--", "waypoint fork bound bound-3"))
    succeeds(person.can(shifted, "restore", "bound-cp"))
    for branch in ("bound", "bound-2", "bound-3"):
        assert "too large" in as_root_inside(shifted, branch, "touch /mnt/made").stderr
        succeeds(person.can(shifted, "exec", "-b", branch, "--", f"touch /mnt/{branch} && rm /mnt/{branch}"))
    stop(shifted, "bound", "bound-2", "bound-3")


def test_a_bind_made_by_root_for_a_user_is_restored_by_root_only(let_in: Home, person: Person, folders: Path) -> None:
    let_in.must("shell", "given", "-d", "--user", person.name, "--bind", f"{folders}/roots:/mnt")
    succeeds(person.can(let_in, "exec", "-b", "given", "--", "true"))
    succeeds(person.can(let_in, "checkpoint", "given-cp", "-b", "given"))
    for words in (
        ("restore", "given-cp"),
        ("fork", "given-cp", "given-2"),
        ("restore", "given-cp", "--only", "files", "-b", "x"),
    ):
        refused(person.can(let_in, *words), f"{person.name} may not write to it\n")
    stop(let_in, "given")


def test_the_mounting_process_checks_the_rights_again(person: Person, folders: Path) -> None:
    """The daemon checks first, with a better error, but the folder may be replaced after its check."""
    who = Identity(uid=person.uid, gid=person.gid, groups=[])
    lists = ("overlays", "binds", "memory", "proc_readonly", "masked", "cwd", "argv")
    values: dict[str, Any] = {name: [] for name in lists} | {"env": {}, "cgroup": "", "merged": "", "net": "none"}
    spec = StartSpec(**values, identity=who, rows=0, cols=0)
    groups = os.getgroups()
    for source in ("roots", "hidden/open"):
        bind = BindMount(source=str(folders / source), target="/mnt", readonly=True, as_user=True)
        with pytest.raises(OSError, match="Permission denied"):
            FromOutside(spec, ()).bind(bind, MountPlace(str(folders / "own")))
        assert not os.path.ismount(folders / "own")
    assert (os.getgroups(), os.access(folders / "roots", os.R_OK)) == (groups, True)
