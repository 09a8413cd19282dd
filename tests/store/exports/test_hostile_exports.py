"""What is no export, or one that no store has written, is refused in words; nothing of it is anywhere then.

WAYPOINT_TEST_FUZZ is how many damaged ones are tried: few by default.
"""

import contextlib
import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import COUNT, bounded
from tests.store.content.stores import new_store
from tests.store.exports.forging import (
    Forge,
    Parts,
    Sound,
    capture,
    entry,
    forged,
    hostile,
    image_of,
    look,
    nothing_written,
    parts_of,
    sound,
)
from waypoint.capture.storing.importing import take_in
from waypoint.capture.storing.orders import Recall, TakeExport
from waypoint.capture.storing.recalling import recall
from waypoint.model.errors import StoreDamaged, WaypointError
from waypoint.model.records import Bind, ShellLayer
from waypoint.store.exports.export_format import OBJECT_HEAD, PieceKind, new_header
from waypoint.store.packs.digests import Kind
from waypoint.store.trees import entries

PATIENT = settings(bounded(150), suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return sound(tmp_path_factory.mktemp("made"))


def said_of(content: bytes, **options: object) -> str:
    with pytest.raises(StoreDamaged) as caught:
        look(content, **options)  # type: ignore[arg-type]
    assert caught.value.next_step
    return caught.value.said


@PATIENT
@given(share=st.floats(0, 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(made: Sound, share: float, bit: int) -> None:
    content = bytearray(made.content)
    place = min(int(share * len(content)), len(content) - 1)
    content[place] ^= 1 << bit
    with pytest.raises(WaypointError) as caught:
        look(bytes(content))
    assert caught.value.next_step


@PATIENT
@given(share=st.floats(0, 1))
def test_any_cut_is_found(made: Sound, share: float) -> None:
    assert said_of(made.content[: int(share * (len(made.content) - 1))])


@PATIENT
@given(data=st.binary(max_size=300), keep=st.integers(0, 60))
def test_anything_at_all_is_refused_in_words(made: Sound, data: bytes, keep: int) -> None:
    with pytest.raises(WaypointError):
        look(made.content[:keep] + data)


def test_pieces_that_were_changed_and_sealed_again_are_refused(made: Sound) -> None:
    """As somebody would who knows the format: each piece has its right length, and the digest of the whole is right."""
    seed = int(os.environ.get("WAYPOINT_TEST_SEED", "1"))
    pick = random.Random(seed)
    parts = parts_of(made.content)
    for number in range(COUNT or 150):
        changed = changed_by(pick, list(parts))
        # Where nothing is wrong (a record has another time; objects have another order) the images have what they had.
        assert refused(forged(changed)) or objects(changed) == objects(parts), f"seed {seed}, case {number}"


def refused(content: bytes) -> str:
    """The next step of what is refused; "" if it is not."""
    try:
        look(content)
    except WaypointError as error:
        return error.next_step
    return ""


def objects(parts: Parts) -> list[bytes]:
    """The digests of the objects."""
    return sorted(OBJECT_HEAD.unpack_from(content)[3] for kind, content in parts if kind == PieceKind.OBJECT)


def changed_by(pick: random.Random, parts: Parts) -> Parts:
    place = pick.randrange(len(parts))
    kind, content = parts[place]
    match pick.randrange(6):
        case 0:
            parts.pop(place)
        case 1:
            parts.insert(pick.randrange(len(parts)), parts[place])
        case 2:
            parts.insert(pick.randrange(len(parts)), parts.pop(place))
        case 3:
            parts[place] = pick.choice(list(PieceKind)), content
        case 4:
            parts[place] = kind, content[: pick.randrange(len(content) + 1)] + pick.randbytes(pick.randrange(9))
        case _:
            changed = bytearray(content or b"\0")
            changed[pick.randrange(len(changed))] ^= 1 << pick.randrange(8)
            parts[place] = kind, bytes(changed)
    return [*(part for part in parts if part[0] != PieceKind.END), (PieceKind.END, b"")]


@pytest.mark.parametrize(
    "name", [b"..", b".", b"", b"a/b", b"/etc/passwd", b"../../etc/passwd", b"a\0b", b"x" * 256], ids=repr
)
def test_names_that_lead_elsewhere(name: bytes, tmp_path: Path) -> None:
    """They lead nowhere either if nobody has looked at the export before it is taken in."""
    content = hostile(entry(name))
    assert "a name that cannot be" in said_of(content)
    file, place = tmp_path / "file", tmp_path / "place"
    file.write_bytes(content)
    (place / "tree").mkdir(parents=True)
    digest: bytes = msgspec.msgpack.decode(parts_of(content)[-1][1])[0]
    with contextlib.closing(new_store(tmp_path / "store")) as store, file.open("rb") as export:
        order = TakeExport(store="", fd=export.fileno(), passphrase="", digest=digest.hex())
        image = take_in(store, order).image
        with nothing_written(place), pytest.raises(StoreDamaged, match="a name that cannot be"):
            recall(store, Recall(store="", image=image, tree=str(place / "tree"), hot=str(place / "hot")))


@pytest.mark.parametrize(
    ("odd", "part"),
    [
        (entry(b"disk", entries.BLOCK, text=bytes([0, 0, 0, 8, 0, 0, 0, 0])), "files"),
        (entry(b"null", entries.CHARACTER, text=bytes([0, 0, 0, 1, 0, 0, 0, 3])), "files"),
        (entry(b"link", entries.LINK, text=b"/etc/shadow"), "rest"),
        (entry(b"fifo", entries.FIFO), "rest"),
        (entry(b"link", entries.LINK, text=b"/etc/shadow"), "processes"),
        (entry(b"gone", entries.CHARACTER, text=bytes(8)), "memory"),
        (entry(b"m0", entries.LINK, text=b"/"), "base"),
    ],
    ids=["disk", "device", "link", "fifo", "link-of-images", "whiteout", "link-of-base"],
)
def test_files_of_kinds_that_a_capture_never_has(odd: entries.TreeEntry, part: str) -> None:
    assert "a file of a kind that they never have" in said_of(hostile(odd, part=part))


def test_what_a_capture_may_have_is_taken() -> None:
    setuid = entry(b"su", mode=0o4755)
    gone = entry(b"gone", entries.CHARACTER, text=bytes(8))
    link = entry(b"link", entries.LINK, text=b"/etc/shadow")
    look(hostile(gone, link, setuid))


@pytest.mark.parametrize(
    "wrong",
    [
        entry(b"a", mode=0o17777),
        entry(b"a", uid=1 << 32),
        entry(b"a", xattrs=[(b"user.x", bytes(1 << 17))]),
        entry(b"a", kind=9),
        entry(b"a", rows=[(None, 1 << 63)]),
        entry(b"a", rows=[(b"short", 1)]),
        entry(b"a", entries.LINK, text=b""),
        entry(b"a", entries.FIFO, rows=[(None, 1)]),
    ],
    ids=["mode", "uid", "attribute", "kind", "size", "digest", "link", "content"],
)
def test_entries_that_cannot_be(wrong: entries.TreeEntry) -> None:
    try:
        content = hostile(wrong)
    except OverflowError:
        pytest.skip("no number of this size can be written")
    assert said_of(content)


def test_sizes_that_no_disk_has() -> None:
    """A few bytes that stand for very many: of one file, and of folders in folders."""
    forge = Forge()
    zeros = forge.put(Kind.DATA, bytes(16 << 20))
    huge = [entry(b"f%d" % number, rows=[(zeros, 16 << 20)] * 100) for number in range(9)]
    assert "would take" in said_of(forge.export(forge.root(forge.tree(*huge))), most_bytes=10 << 30)
    forge = Forge()
    row = forge.tree(entry(b"file"))
    for _ in range(30):
        row = forge.tree(*(entry(b"d%02d" % number, entries.FOLDER, rows=[row]) for number in range(50)))
    assert "would take" in said_of(forge.export(forge.root(row)))


def test_holes_count_where_a_file_is_read_as_it_is() -> None:
    hole = entry(b"seen.json", rows=[(None, 1 << 40)])
    assert "bytes, and has at most" in said_of(hostile(hole, part="rest"))
    assert "would take" in said_of(hostile(hole, part="processes"))
    look(hostile(hole))


def test_content_that_becomes_more_than_it_says() -> None:
    forge = Forge()
    forge.put(Kind.DATA, bytes(1 << 20))
    kind, piece = forge.objects[0]
    _, codec, length, digest = OBJECT_HEAD.unpack_from(piece)
    for claimed in (length - 1, length + 1, 1, (16 << 20) + 1, (1 << 32) - 1):
        head = OBJECT_HEAD.pack(Kind.DATA, codec, claimed, digest)
        forge.objects[0] = kind, head + piece[OBJECT_HEAD.size :]
        assert "cannot be read" in said_of(forge.export(digest))


def test_references_to_what_is_not_there_or_is_something_else() -> None:
    for rows in ([(b"\1" * 32, 1)], [(b"\1" * 32, 1 << 40)]):
        assert "which has not come before" in said_of(hostile(entry(b"a", rows=rows)))
    forge = Forge()
    data = forge.put(Kind.DATA, b"content")
    assert "as another one than it is" in said_of(forge.export(forge.root((data, 7))))
    forge = Forge()
    data = forge.put(Kind.DATA, b"content")
    assert "as another one than it is" in said_of(forge.export(forge.root(forge.tree(entry(b"a", rows=[(data, 8)])))))
    forge = Forge()
    root = forge.root(forge.tree(entry(b"a")))
    forge.objects.reverse()  # a folder before what is in it, as one that has itself in it would be
    assert "which has not come before" in said_of(forge.export(root))


def test_what_comes_twice_or_for_nothing() -> None:
    forge = Forge()
    root = forge.root(forge.tree(entry(b"a")))
    forge.objects.append(forge.objects[0])
    assert "twice" in said_of(forge.export(root))
    forge = Forge()
    forge.put(Kind.DATA, b"nobody needs it")
    assert "no image consists of" in said_of(forge.export(forge.root()))
    forge = Forge()
    root = forge.root()
    image = msgspec.msgpack.encode(image_of(root, capture(id="0" * 32)))
    head = msgspec.msgpack.encode(["", 2, 0])
    parts: Parts = [(PieceKind.HEAD, head), *forge.objects, *[(PieceKind.IMAGE, image)] * 2, (PieceKind.END, b"")]
    assert "twice" in said_of(forged(parts))


def test_records_that_no_capture_has() -> None:
    root = (forge := Forge()).root()
    setting = capture().setting
    wrong = [
        capture(id="../../etc"),
        capture(branch="../x"),
        capture(created=1e300),
        capture(tier="live"),
        capture(setting=msgspec.structs.replace(setting, base="etc/..")),
        capture(setting=msgspec.structs.replace(setting, binds=[Bind(source="/a/../..", target="/b", readonly=True)])),
        capture(
            layers=msgspec.structs.replace(
                capture().layers, shell=ShellLayer(size_bytes=1, kind="bash", file="../../../etc/shadow")
            )
        ),
    ]
    for one in wrong:
        assert "tells what cannot be" in said_of(forge.export(root, image_of(root, one)))
    look(forge.export(root))
    look(forge.export(root, image_of(root, part="more")))  # of a later version
    bad = msgspec.json.encode(msgspec.structs.replace(capture().layers, attached={}))
    bad = bad.replace(b'"attached":{}', b'"attached":{"../x":{"files":0,"is_folder":false,"size_bytes":0,"stamp":""}}')
    layers = msgspec.json.decode(bad, type=type(capture().layers))
    assert "tells what cannot be" in said_of(forge.export(root, image_of(root, capture(layers=layers))))


def test_work_that_no_passphrase_needs() -> None:
    header = new_header(encrypted=True, signed=False)
    for changes in ({"n": 1 << 30}, {"r": 1 << 20}, {"p": 1 << 30}, {"n": 12345}, {"n": 0}):
        with pytest.raises(StoreDamaged, match="more work than any passphrase needs"):
            look(header._replace(**changes).packed() + bytes(200), passphrase="x")
