"""Which files of the base a capture's processes have, and what of them comes into the store, and back into a tree."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.store.content.stores import new_store
from tests.store.exports.forging import capture, image_of
from waypoint.capture import captures
from waypoint.capture.base_files import base_listing, base_part
from waypoint.capture.base_files.base_bringing import BaseBringing
from waypoint.capture.base_files.base_listing import BaseListing, CapturedBase
from waypoint.capture.base_files.base_part import AlikeBase, PutBase, listing_in, moment_of, put_base
from waypoint.capture.base_files.mentioned import BaseFile, files_of_base
from waypoint.capture.elsewhere import check_here, describe_machine
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import Area, Layer, Place
from waypoint.capture.storing.orders import Recall
from waypoint.capture.storing.recalling import recall
from waypoint.capture.torn import Torn
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged
from waypoint.model.records import Capture, FilesLayer, Layers, Machine, ProcessesLayer
from waypoint.processes.criu.causes import Diagnosis, failure
from waypoint.processes.criu.lists import FILES, FILES_MAGIC, REMAPS, REMAPS_MAGIC, write_messages
from waypoint.processes.criu.messages import Field, Message, Value, encode
from waypoint.processes.criu.rpc import CriuProgram
from waypoint.store.content.opened import Store
from waypoint.store.trees import gathering
from waypoint.store.trees.earlier import Earlier

pytestmark = pytest.mark.privileged

REG = Message(
    {
        "id": Field(1, "uint32"),
        "flags": Field(2, "uint32"),
        "name": Field(6, "string"),
        "size": Field(8, "uint64"),
        "ext": Field(9, "bool"),
        "mode": Field(10, "uint32"),
    }
)
FILE = Message({"type": Field(1, "uint32"), "id": Field(2, "uint32"), "reg": Field(3, REG)})
REMAP = Message({"orig_id": Field(1, "uint32"), "remap_id": Field(2, "uint32"), "remap_type": Field(3, "uint32")})
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
"""That to make raw sockets (linux/capability.h, vfs_cap_data of version 2)."""
LIBRARY, SCRIPT = BaseFile("/", b"usr/lib/l.so"), BaseFile("/", b"srv/run.py")


class Ground:
    """A base, a tree over it, and images that mention what is told."""

    def __init__(self, place: Path) -> None:
        self.base, self.tree, self.images = place / "base", place / "tree", place / "images"
        for folder in (self.base / "usr/lib", self.base / "srv", self.tree / "m0/upper", self.images):
            folder.mkdir(parents=True)
        (self.base / "usr/lib/l.so").write_bytes(os.urandom(300_000))
        (self.base / "srv/run.py").write_bytes(b"print()\n")
        (self.base / "srv/run.py").chmod(0o755)
        self.entries: list[bytes] = []
        layer = ProcessesLayer(
            overlays=["/", "/home"],
            outside=["/", "/home", "/dev", "/srv/bound"],
            proc_readonly=[],
            env={},
            nonce="",
            size_bytes=0,
            count=1,
            programs=[],
            frozen_us=0,
            criu="4.2",
        )
        self.capture = capture(
            tier="live",
            layers=Layers(files=FilesLayer(tree="t"), processes=layer),
            created=time.time() + 3600,  # all files are older, however long they take
            setting=msgspec.structs.replace(capture().setting, base=str(self.base)),
        )

    def mention(self, name: str, **more: Value) -> None:
        number = len(self.entries) + 1
        reg: dict[str, Value] = {"id": number, "flags": 0, "name": name, "mode": 0o100644, **more}
        self.entries.append(encode(FILE, {"type": 1, "id": number, "reg": reg}))
        with open_folder(self.images) as fd:
            write_messages(fd, FILES, FILES_MAGIC, self.entries)

    def found(self) -> list[BaseFile]:
        assert self.capture.layers.processes is not None
        with open_folder(self.images) as fd:
            return [one.file for one in files_of_base(fd, self.capture.layers.processes, str(self.tree))]

    def put(self, store: Store, alike: Any = (), most: int = 1 << 30, hidden: str = "/nowhere") -> PutBase:
        with store.writing("test") as writer:
            others = [AlikeBase(Earlier(writer, root), moment) for root, moment in alike]
            made = put_base(writer, self.capture, (str(self.tree), str(self.images)), others, most, [hidden])
            writer.commit()
            return made

    def bring(self, store: Store, root: bytes, *files: BaseFile, to: str = "") -> list[BaseFile]:
        with store.reading() as reader:
            return BaseBringing(reader, root, str(self.base), to or str(self.tree)).bring(list(files))


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    made = Ground(tmp_path)
    made.mention("/usr/lib/l.so", size=300_000)
    made.mention("/srv/run.py", size=8)
    return made


def test_nothing_is_put_of_what_no_session_sees(ground: Ground, store: Store) -> None:
    made = ground.put(store, hidden=f"{ground.base}/usr/lib")
    assert [one.file.shown for one in made.listing.rows] == ["/srv/run.py"]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = new_store(tmp_path / "store")
    yield made
    made.close()


def test_what_is_of_the_base_is_found_where_it_lies_there(ground: Ground) -> None:
    upper = ground.tree / "m0/upper"
    (upper / "srv").mkdir()
    (upper / "srv/run.py").write_text("changed")
    (upper / "moved").mkdir()
    os.setxattr(upper / "moved", "trusted.overlay.redirect", b"/usr")
    (upper / "own").mkdir()
    os.setxattr(upper / "own", "trusted.overlay.opaque", b"y")
    (ground.tree / "m%2Fhome/upper").mkdir(parents=True)
    (ground.tree / "m0/base/opt").mkdir(parents=True)
    (ground.tree / "m0/base/opt/old.so").touch()
    for name in ("moved/lib/l.so", "./own/x", "home/me/a", "srv/bound/b", "dev/null", "run/x", ".waypoint/init.sh"):
        ground.mention(name)
    ground.mention("opt/old.so")
    ground.mention("opt/path", flags=0o10000000)
    ground.mention("opt/outside", ext=True)
    ground.mention("opt/folder", mode=0o040755)
    ground.mention("opt/removed")
    with open_folder(ground.images) as fd:
        gone = encode(REMAP, {"orig_id": len(ground.entries), "remap_id": 1, "remap_type": 1})
        write_messages(fd, REMAPS, REMAPS_MAGIC, [gone])
    assert ground.found() == [LIBRARY, BaseFile("/home", b"me/a")]


def test_what_is_put_comes_back_as_it_was(ground: Ground, store: Store) -> None:
    library, old = ground.base / "usr/lib/l.so", (ground.base / "usr/lib/l.so").read_bytes()
    kept = {"security.capability": CAPABILITY, "user.note": b"x"}
    for name, value in {**kept, "trusted.note": b"x", "user.overlay.opaque": b"y"}.items():
        os.setxattr(library, name, value)
    made = ground.put(store)
    assert made.listing.left_out == []
    with store.reading() as reader:
        assert listing_in(Earlier(reader, made.root), []) == made.listing
    hot = CapturedBase(str(ground.images), str(ground.base))
    base_listing.save(hot.hot, made.listing)
    assert base_listing.load(hot.hot) == made.listing
    assert hot.differing() == []

    before = os.stat(library)
    os.utime(ground.base / "srv/run.py")  # another time, and nothing else
    library.write_bytes(b"new")
    assert hot.differing() == [SCRIPT, LIBRARY]
    os.mkdir(hot.brought)
    assert hot.not_brought(hot.differing()) == [SCRIPT, LIBRARY]
    assert ground.bring(store, made.root, SCRIPT, LIBRARY, to=hot.brought) == [LIBRARY]
    hot.note_same({SCRIPT})
    assert hot.differing() == [LIBRARY]
    assert hot.not_brought(hot.differing()) == []
    hot.give(str(ground.tree))
    os.truncate(f"{hot.brought}/m0/base/usr/lib/l.so", 5)  # as a daemon leaves it that is killed meanwhile
    assert hot.not_brought(hot.differing()) == [LIBRARY]
    brought = ground.tree / "m0/base/usr/lib/l.so"
    assert brought.read_bytes() == old
    assert {name: os.getxattr(brought, name) for name in os.listxattr(brought)} == kept
    facts = os.stat(brought)
    assert (facts.st_mtime_ns, facts.st_mode, facts.st_uid) == (before.st_mtime_ns, before.st_mode, before.st_uid)
    assert ground.found() == [SCRIPT]  # the other one is a part of the tree

    (ground.base / "srv/run.py").unlink()
    (ground.base / "srv").rmdir()
    assert ground.bring(store, made.root, SCRIPT) == [SCRIPT]
    assert (ground.tree / "m0/base/srv/run.py").stat().st_mode & 0o7777 == 0o755


@contextlib.contextmanager
def passable(folder: Path) -> Iterator[None]:
    """In the `with` everybody may pass to the folder, through those above it that are this user's."""
    with contextlib.ExitStack() as held:
        for one in (folder, *folder.parents):
            mode = stat.S_IMODE(one.stat().st_mode)
            if one.stat().st_uid == os.geteuid() and mode & 0o005 != 0o005 and one.name:
                held.callback(one.chmod, mode)
                one.chmod(0o755)
        yield


def test_what_is_not_what_they_had_or_too_much_is_left_out(
    ground: Ground, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.mention("/usr/lib/gone.so", size=1)
    (ground.base / "usr/lib/linked.so").symlink_to("l.so")
    ground.mention("/usr/lib/linked.so")
    (ground.base / "srv/longer").write_bytes(b"ab")
    ground.mention("/srv/longer", size=1)
    (ground.base / "srv/secret").write_bytes(b"ab")
    (ground.base / "srv/secret").chmod(0o600)
    ground.mention("/srv/secret", size=2)
    person = msgspec.structs.replace(ground.capture.setting.user, name="them", uid=4242, gid=4242, groups=[4242])
    setting = msgspec.structs.replace(ground.capture.setting, user=person)
    ground.capture = msgspec.structs.replace(ground.capture, setting=setting)
    with passable(ground.base):
        made = ground.put(store, most=299_999)
    assert [row.file for row in made.listing.rows] == [SCRIPT]
    said = dict(one.split(": ", 1) for one in made.listing.left_out)
    assert said.pop("/usr/lib/l.so") == "with it, there would be too much (base_files_bytes in config.json)"
    assert said.pop("/srv/longer") == "has changed since"
    assert said.pop("/srv/secret") == "them may not read it"
    assert set(said) == {"/usr/lib/gone.so", "/usr/lib/linked.so"}
    assert all(one.startswith("it is not there any more") for one in said.values())

    ground.capture = msgspec.structs.replace(ground.capture, created=time.time() - 60)
    made = ground.put(store)
    assert (made.root, made.listing.rows) == (b"", [])
    monkeypatch.setattr(base_part, "_MOST_TOLD", sum(map(len, made.listing.left_out)) - 1)
    assert ground.put(store).listing.left_out == [*made.listing.left_out[:-1], "and 1 more files"]


def test_what_another_image_has_is_not_read_again(
    ground: Ground, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its time of change is later than that image."""
    read: list[int] = []

    def put_content(*args: Any) -> None:
        read.append(args[-1])
        gathering.put_content(*args)

    monkeypatch.setattr(base_part, "put_content", put_content)
    first = ground.put(store)
    later, before = moment_of(ground.capture), time.time_ns() - 60 * 10**9
    assert ground.put(store, [(first.root, later)]) == first
    assert read == [8, 300_000]

    facts = os.stat(ground.base / "srv/run.py")
    (ground.base / "srv/run.py").write_bytes(b"pass__\n\n")
    os.utime(ground.base / "srv/run.py", ns=(facts.st_mtime_ns, facts.st_mtime_ns))
    assert ground.put(store, [(first.root, before)]).root != first.root
    assert read == [8, 300_000, 8, 300_000]


def test_a_clock_that_was_set_since_makes_nothing_older(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    now, machine = time.time(), describe_machine(str(ground.base))
    clock = time.clock_gettime(time.CLOCK_BOOTTIME)
    one = msgspec.structs.replace(ground.capture, created=now, clock=clock, machine=machine)
    for hour in (-3600, 3600):
        monkeypatch.setattr(time, "time", lambda hour=hour: now + hour)
        assert moment_of(one) <= int(min(now, now + hour + 60) * 1e9)


def test_nothing_leads_out_of_the_tree(ground: Ground, store: Store, tmp_path: Path) -> None:
    made = ground.put(store)
    (ground.base / "usr/lib/l.so").unlink()
    (tmp_path / "outside").mkdir()
    with pytest.raises(StoreDamaged):
        ground.bring(store, made.root, BaseFile("/", b"../outside/l.so"))
    with pytest.raises(StoreDamaged):
        ground.bring(store, made.root, BaseFile("/", b"usr/lib"))
    (ground.tree / "m0/base").mkdir()
    (ground.tree / "m0/base/usr").symlink_to(tmp_path / "outside")
    with pytest.raises(Failed, match="symbolic links"):
        ground.bring(store, made.root, LIBRARY)
    assert list((tmp_path / "outside").iterdir()) == []
    (ground.tree / "m0/base/usr").unlink()
    (ground.base / "usr/lib").rmdir()
    (ground.base / "usr/lib").symlink_to("/lib")
    with pytest.raises(CannotCapture, match="a link, or a file, where the folder of") as caught:
        ground.bring(store, made.root, LIBRARY)
    assert caught.value.next_step == "move that away, and try again"
    (ground.base / "usr/lib").unlink()
    assert ground.bring(store, made.root, LIBRARY) == [LIBRARY]
    assert base_listing.load(str(tmp_path)) == BaseListing()
    (tmp_path / base_listing.LISTING).write_bytes(b"\x92torn")
    assert base_listing.load(str(tmp_path)) == BaseListing()


def test_what_is_given_to_a_tree_follows_no_link_that_is_there(tmp_path: Path) -> None:
    """A tree that an import brought may have any."""
    brought, tree, outside = tmp_path / "hot" / base_listing.BROUGHT, tmp_path / "tree", tmp_path / "outside"
    for folder in (brought / "m0/base/srv", tree / "m0/base/srv"):
        folder.mkdir(parents=True)
    (brought / "m0/base/srv/x").write_text("brought")
    outside.write_text("the machine's")
    (tree / "m0/base/srv/x").symlink_to(outside)
    CapturedBase(hot=str(tmp_path / "hot"), base="/").give(str(tree))
    assert outside.read_text() == "the machine's"
    assert not (tree / "m0/base/srv/x").is_symlink()
    assert (tree / "m0/base/srv/x").read_text() == "brought"


@pytest.mark.parametrize("link", ["m0", "m0/upper", "m0/base", "m0/base/srv/x"])
def test_a_tree_of_which_a_layer_leads_elsewhere_is_not_brought_back(store: Store, tmp_path: Path, link: str) -> None:
    for folder in ("files", "back"):
        (tmp_path / folder).mkdir()
    (tmp_path / "files" / link).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / "files" / link).symlink_to("/etc")
    with store.writing("test") as writer, open_folder(tmp_path / "files") as fd:
        root = gathering.gather(writer, fd)
        writer.commit()
        image = store.images.add(image_of(root))
    with pytest.raises(StoreDamaged, match=f"{link} is (no folder|neither a file nor a folder)"):
        recall(store, Recall(store="", image=image, tree=str(tmp_path / "back"), hot=str(tmp_path / "hot")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "riscv64"}, "of a machine of riscv64"),
        ({"cpu_features": ["avx9", "kaiser"]}, "lacks: avx9"),
        ({"cpu_features": ["kaiser"], "kernel": "99.1"}, ""),
    ],
    ids=["architecture", "features", "what-is-the-kernels"],
)
def test_processes_of_another_processor_are_refused_in_words(
    ground: Ground, changes: dict[str, Any], said: str
) -> None:
    there: Machine = msgspec.structs.replace(describe_machine("/"), boot_id="of another machine", **changes)
    one: Capture = msgspec.structs.replace(ground.capture, machine=there)
    if not said:
        check_here(one)
        return
    with pytest.raises(CannotCapture, match=said) as caught:
        check_here(one)
    assert caught.value.next_step == "bring them back where they were captured"
    here = msgspec.structs.replace(there, boot_id=describe_machine("/").boot_id)
    check_here(msgspec.structs.replace(one, machine=here))


def test_what_is_other_here_is_told_when_criu_refuses(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(Layer):
        def bring_back(self, area: Area, origin: Capture, place: Place) -> None:
            raise failure("restore", Diagnosis("vdso", "Error", "it is too old", "take another"), None)

    monkeypatch.setattr(captures, "LAYERS", (Refused(),))
    there = msgspec.structs.replace(describe_machine(str(ground.base)), kernel="99.1.0", boot_id="of another machine")
    one = msgspec.structs.replace(ground.capture, machine=there)
    program = CriuProgram(path=tmp_path, version="4.2", origin="private")
    pool: Any = SimpleNamespace(path=str)
    held = captures.Held(Area(pool, Hot(tmp_path)), one, lambda: program, Torn(tmp_path))
    with pytest.raises(CannotCapture, match=r"it is too old; its processes are of Linux 99\.1\.0, and Linux "):
        held.bring_back(Place())
