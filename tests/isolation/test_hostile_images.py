"""Images of processes that ask CRIU for more than their session had: refused before CRIU, which is root, reads them."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.homes import Home, open_home
from tests.session import ledger
from waypoint.client import Client, Session
from waypoint.launch.walls.restored import TaskWalls, check_first
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import StoreDamaged
from waypoint.model.records import HOST_IDS
from waypoint.processes.criu import image_plan
from waypoint.processes.criu.image_plan import ImagePlan, check
from waypoint.processes.criu.lists import (
    FILES,
    FILES_MAGIC,
    REMAPS,
    REMAPS_MAGIC,
    read_messages,
    write_messages,
)
from waypoint.processes.criu.messages import Value, decode, encode

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

Row = dict[str, Value]
Rows = dict[str, Row]
WITHOUT_RIGHTS = "is not that of the session"


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("images", settings={"hot_memory_bytes": 0}) as home:
        yield home


@pytest.fixture(scope="module")
def session(home: Home) -> Session:
    live = Client(home.path).start("main")
    live.exec("kept=yes; sleep 1000 &")
    live.checkpoint("point")
    return live


@pytest.fixture(scope="module")
def images(home: Home, session: Session) -> Path:
    return home.path / "hot" / home.must("show", "point", "--json").json()["capture"] / "images"


@pytest.fixture
def copy(images: Path, tmp_path: Path) -> Path:
    return shutil.copytree(images, tmp_path / "images")


def of_mounts(images: Path) -> str:
    (found,) = images.glob("mountpoints-*.img")
    return found.name


def rows_of(images: Path) -> Rows:
    fd = os.open(images, os.O_RDONLY)
    try:
        found = [
            decode(image_plan._MOUNT, one) for one in read_messages(fd, of_mounts(images), image_plan._MOUNTS_MAGIC)
        ]
    finally:
        os.close(fd)
    return {str(row["place"]): row for row in found}


def put_rows(images: Path, rows: Rows) -> None:
    fd = os.open(images, os.O_RDONLY)
    content = [encode(image_plan._MOUNT, row) for row in rows.values()]
    write_messages(fd, of_mounts(images), image_plan._MOUNTS_MAGIC, content)
    os.close(fd)


def plan_of(rows: Rows) -> ImagePlan:
    numbered = {str(row["external"]): place for place, row in rows.items() if "external" in row}
    outside = ["/", *(numbered[f"m{number}"] for number in range(1, len(numbered) + 1))]
    readonly = [place for place, row in rows.items() if row["fstype"] == 1 and row["root"] != "/"]
    masked = rows.keys() - {*outside, *readonly, "/proc", "/dev/pts"}
    return ImagePlan(outside, [place.removeprefix("/proc/") for place in readonly], masked, own_network=True)


def judged(images: Path, plan: ImagePlan) -> None:
    fd = os.open(images, os.O_RDONLY)
    try:
        check(fd, plan)
    finally:
        os.close(fd)


def and_one_more(rows: Rows) -> None:
    rows["more"] = {**rows["/dev/shm"], "place": "/mnt", "source": "/etc", "sb_flags": mounts.MS_BIND}
    del rows["more"]["external"]


def and_one_again(rows: Rows) -> None:
    rows["again"] = rows["/proc"]


def having(place: str, **values: Value) -> Callable[[Rows], None]:
    return lambda rows: rows[place].update(values)


def open_again(rows: Rows) -> None:
    flags = rows["/proc/sys"]["flags"]
    assert isinstance(flags, int)
    rows["/proc/sys"]["flags"] = flags & ~mounts.MS_RDONLY


def above(rows: Rows) -> None:
    rows["/sys/firmware"]["root"] = f"{rows['/dev']['root']}/../../etc"


ATTACKS = {
    "a folder of the machine": (and_one_more, "not those of the session: /mnt"),
    "two at one place": (and_one_again, "two at one place"),
    "a deleted folder": (having("/dev/shm", deleted=1), WITHOUT_RIGHTS),
    "a plugin": (having("/dev/shm", with_plugin=1), WITHOUT_RIGHTS),
    "a name of CRIU's own": (having("/dev/shm", is_external=1), WITHOUT_RIGHTS),
    "another from outside": (having("/dev/shm", external="m1"), WITHOUT_RIGHTS),
    "none from outside": (having("/dev/shm", external=""), WITHOUT_RIGHTS),
    "one from outside in place of proc": (having("/proc", external="m1"), WITHOUT_RIGHTS),
    "a bind": (having("/dev/pts", sb_flags=mounts.MS_BIND), WITHOUT_RIGHTS),
    "a folder above": (above, WITHOUT_RIGHTS),
    "what is not the mask": (having("/sys/firmware", root="/"), WITHOUT_RIGHTS),
    "a mask of another file system": (having("/sys/firmware", source="/etc"), WITHOUT_RIGHTS),
    "proc that is not read-only": (open_again, WITHOUT_RIGHTS),
    "another folder of proc": (having("/proc/sys", root="/"), WITHOUT_RIGHTS),
    "no terminals": (having("/dev/pts", fstype=5), WITHOUT_RIGHTS),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_other_mounts_than_the_session_had_are_refused(copy: Path, what: str) -> None:
    rows, (change, said) = rows_of(copy), ATTACKS[what]
    plan = plan_of(rows)
    judged(copy, plan)
    change(rows)
    put_rows(copy, rows)
    with pytest.raises(ValueError, match=said):
        judged(copy, plan)


def test_a_mount_that_is_elsewhere_is_no_damage(copy: Path) -> None:
    """Who may rename a folder moves the mounts below it."""
    rows = rows_of(copy)
    plan = plan_of(rows)
    with pytest.raises(OSError, match="nothing is mounted there") as raised:
        judged(copy, plan._replace(masked={*plan.masked, "/proc/nosuch"}))
    assert (raised.value.errno, raised.value.filename) == (beneath.MISPLACED, "/proc/nosuch")
    rows["/dev/shm"]["flags"] = mounts.MS_SLAVE | mounts.MS_NODEV  # of a mount of the machine that is shared
    put_rows(copy, rows)
    judged(copy, plan)
    rows["/proc"]["flags"] = mounts.MS_SLAVE
    put_rows(copy, rows)
    with pytest.raises(ValueError, match=WITHOUT_RIGHTS):
        judged(copy, plan)


def test_what_criu_would_put_together_of_two_is_refused(copy: Path) -> None:
    """The last of two is not all that it reads."""
    plan, content = plan_of(rows_of(copy)), (copy / "inventory.img").read_bytes()
    again = encode(image_plan._INVENTORY, {"ids": {}})
    size = len(content) - 8 + len(again)
    (copy / "inventory.img").write_bytes(content[:4] + size.to_bytes(4, "little") + content[8:] + again)
    with pytest.raises(ValueError, match="field 3 is there twice"):
        judged(copy, plan)


def test_a_file_without_a_name_is_made_in_no_folder_above(copy: Path) -> None:
    fd, plan = os.open(copy, os.O_RDONLY), plan_of(rows_of(copy))
    entries = read_messages(fd, FILES, FILES_MAGIC)
    write_messages(fd, REMAPS, REMAPS_MAGIC, [])
    judged(copy, plan)
    write_messages(fd, FILES, FILES_MAGIC, [*entries, encode(image_plan._FILE, {"reg": {"name": "/../../etc/x"}})])
    os.close(fd)
    with pytest.raises(ValueError, match=r"the name /../../etc/x"):
        judged(copy, plan)


def test_what_would_be_unpacked_somewhere_is_refused(copy: Path) -> None:
    plan, name = plan_of(rows_of(copy)), of_mounts(copy)
    (copy / "tmpfs-dev-5.tar.gz.img").touch()
    with pytest.raises(ValueError, match="tmpfs-dev-5"):
        judged(copy, plan)
    (copy / "tmpfs-dev-5.tar.gz.img").unlink()
    shutil.copy(copy / name, copy / "mountpoints-99.img")
    with pytest.raises(ValueError, match="2 lists of mounts"):
        judged(copy, plan)


@pytest.mark.parametrize("kind", ["pid", "net", "ipc", "uts", "mnt", "user"])
def test_the_namespaces_of_who_dumped_are_refused(copy: Path, kind: str) -> None:
    plan = plan_of(rows_of(copy))
    fd = os.open(copy, os.O_RDONLY)
    content = (copy / "inventory.img").read_bytes()
    outer = decode(image_plan._INVENTORY, content[8:])["ids"]
    assert isinstance(outer, dict)
    names = sorted(path.name for path in copy.glob("ids-*.img"))
    for name in names:
        (entry,) = read_messages(fd, name, image_plan._IDS_MAGIC)
        changed = encode(image_plan._IDS, {**decode(image_plan._IDS, entry), kind: outer[kind]})
        write_messages(fd, name, image_plan._IDS_MAGIC, [changed])
        with pytest.raises(
            ValueError, match=f"namespace {kind} of their own" if name == names[-1] else f"several.*{kind}"
        ):
            judged(copy, plan)
    (copy / "ids-1.img").unlink()
    with pytest.raises(ValueError, match="do not tell in which namespaces"):
        judged(copy, plan)
    os.close(fd)


def test_a_restore_of_such_images_is_refused_and_the_session_goes_on(
    home: Home, session: Session, images: Path
) -> None:
    """And with them as they were it works: the plan is that of the product."""
    for path in sorted(images.glob("ids-*.img")):
        content = path.read_bytes()
        path.write_bytes(content.replace(b"\x50\x0e", b"\x50\x07"))  # the user namespace: that of CRIU
        assert path.read_bytes() != content
        refused = home.cli("restore", "point")
        assert (refused.code, "are not what Waypoint wrote: their processes" in refused.stderr) == (10, True)
        assert session.exec("echo $kept").output == b"yes\n"
    for path in images.glob("ids-*.img"):
        path.write_bytes(path.read_bytes().replace(b"\x50\x07", b"\x50\x0e"))
    home.must("restore", "point")
    assert Client(home.path).session("main").exec("echo $kept; jobs -r | wc -l").output == b"yes\n1\n"


def test_a_file_without_a_name_is_made_nowhere_outside(home: Home) -> None:
    """A link that has the name of its folder leads to a folder of the machine that everybody may write to. Left out:
    whether the copy comes to life.
    """
    outside = Path(tempfile.mkdtemp(dir="/var/tmp"))
    outside.chmod(0o1777)
    live = Client(home.path).start("ghost")
    hold = "f = open('/srv/a/f', 'w'); f.write('x'); f.flush(); open('/srv/on', 'w').write('x'); input()"
    live.exec(f'mkfifo /srv/in; mkdir /srv/a; sleep 1000 >/srv/in & python3 -c "{hold}" </srv/in &')
    live.exec(f"until [ -s /srv/on ]; do :; done; rm -r /srv/a; ln -s {outside} /srv/a")
    live.checkpoint("ghost-point", tier="live")
    before = outside.stat().st_mtime_ns
    home.cli("fork", "ghost-point", "ghost-copy")
    assert (os.listdir(outside), outside.stat().st_mtime_ns) == ([], before)
    outside.rmdir()


def test_a_first_process_that_is_root_of_the_machine_makes_no_mounts(home: Home) -> None:
    """Should CRIU make one all the same."""
    group = str(ledger.group_of(home) / "first")
    cgroups.create(group)
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(1)
    try:
        cgroups.write(group, "cgroup.procs", str(pid))
        with pytest.raises(StoreDamaged, match="the machine's namespace user"):
            check_first(pid, group, TaskWalls(HOST_IDS, own_network=True, filtered=True))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    finally:
        cgroups.end(group)
