"""Archives that were forged or damaged are refused before anything is kept; other tools can read those of Waypoint."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from tests.store.forging import FACTS, ROOT, SETTING, Forge, record
from tests.store.stores import put_folder, take_out
from tests.store.test_hostile import entry
from waypoint.capture.storing import archive_work, base_records
from waypoint.capture.storing.orders import ArchiveFile, Export, Exported, Import, Imported, Inspect, Inspected
from waypoint.model.errors import StateConflict, StoreDamaged, UsageProblem
from waypoint.store import entries, manifest, steps, upkeep
from waypoint.store.archives import signatures
from waypoint.store.entries import TreeEntry
from waypoint.store.manifest import ImageLayer
from waypoint.store.objects import Kind
from waypoint.store.steps import Step
from waypoint.store.store import Store, make_store

pytestmark = pytest.mark.privileged
FREE = 1 << 30


def file_at(path: Path, key: str = "") -> ArchiveFile:
    return ArchiveFile(path=str(path), user=ROOT, key=key)


def inspect(store: Store, path: Path, key: Path | None = None, *, may_be_privileged: bool = True) -> Inspected:
    order = Inspect(
        store=store.path,
        file=file_at(path, str(key or "")),
        max_bytes=FREE,
        may_be_privileged=may_be_privileged,
    )
    found = archive_work.carry_out(store, order, lambda _: None)
    assert isinstance(found, Inspected)
    return found


def take_in(store: Store, path: Path, digest: str) -> None:
    order = Import(store=store.path, file=file_at(path), digest=digest, max_bytes=FREE)
    assert isinstance(archive_work.carry_out(store, order, lambda _: None), Imported)


def export(store: Store, path: Path, images: list[str], *, key: str = "") -> Exported:
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    told = [{"image": image, "capture": record(number), "name": f"n{number}"} for number, image in enumerate(images, 1)]
    order = Export(
        store=store.path,
        file=file_at(path, key),
        scratch=str(scratch),
        name="name",
        images=images,
        records=json.dumps(told),
        created="2026-01-01T00:00:00.000Z",
        oci_layers=True,
    )
    found = archive_work.carry_out(store, order, lambda _: None)
    assert isinstance(found, Exported)
    assert list(scratch.iterdir()) == []
    return found


# --- what is forged


def put_layer(kind: str, *inside: TreeEntry, **facts: Any) -> Callable[[Forge], None]:
    def change(forge: Forge) -> None:
        forge.layers[kind] = ImageLayer(roots={"terminal": forge.root(*inside)}, facts=facts)

    return change


def put_tree(*inside: TreeEntry) -> Callable[[Forge], None]:
    def change(forge: Forge) -> None:
        forge.layers["files"] = ImageLayer(roots={"tree": forge.tree(*inside)})

    return change


def put_roots(**roots: str) -> Callable[[Forge], None]:
    return lambda forge: forge.layers.update(files=ImageLayer(roots=roots))


def put_mount(*inside: TreeEntry) -> Callable[[Forge], None]:
    return lambda forge: forge.layers.update(files=ImageLayer(roots={"tree": forge.root(*inside)}))


def put_facts(**facts: Any) -> Callable[[Forge], None]:
    return lambda forge: forge.facts.update(facts)


def put_records(*records: dict[str, Any]) -> Callable[[Forge], None]:
    return lambda forge: setattr(forge, "records", list(records))


def put_bomb(forge: Forge) -> None:
    """Folders in folders, 64 of each below the other: 2**60 files in few bytes."""
    inside = forge.folder(b"x", *(forge.file(b"%d" % one, b"content") for one in range(64)))
    for _ in range(10):
        inside = forge.folder(b"x", *(msgspec.structs.replace(inside, name=b"%d" % one) for one in range(64)))
    put_tree(inside)(forge)


def put_long_file(forge: Forge) -> None:
    """A file that says to be longer than its content."""
    digest = forge.put(Kind.DATA, b"content")
    put_tree(entry(b"file", entries.FILE, rows=[(digest, 8)]))(forge)


def user(**changed: Any) -> dict[str, Any]:
    return SETTING | {"user": SETTING["user"] | changed}


BASE: dict[str, Any] = msgspec.to_builtins(base_records.SETTING)
FILE, LINK = entries.FILE, entries.SYMLINK
TERMINAL = {"size_bytes": 1, "rows": 24, "cols": 80, "end": 0}
ATTACHED = {"size_bytes": 1, "type": "file", "source": "/x", "files": 1, "attached": True}
FORGED: dict[str, Callable[[Forge], None]] = {
    "name that leads up": put_tree(entry(b"..", FILE)),
    "absolute name": put_tree(entry(b"/etc/passwd", FILE)),
    "name twice": put_tree(entry(b"a", FILE), entry(b"a", FILE)),
    "device": put_tree(entry(b"sda", entries.BLOCK, text=bytes(7) + b"\x08")),
    "object that is missing": put_tree(entry(b"file", FILE, rows=[(bytes(32), 7)])),
    "file with a wrong length": put_long_file,
    "folder that is missing": put_roots(tree="00" * 32),
    "no files": lambda forge: put_roots(memory=forge.root())(forge),
    "more files than the disk has": put_bomb,
    "mount that is a link": put_mount(entry(b"m0", LINK, text=b"/etc")),
    "upper directory that is a link": lambda forge: put_mount(forge.folder(b"m0", entry(b"upper", LINK, text=b"/etc")))(
        forge
    ),
    "file that is no mount": put_mount(entry(b"etc", FILE)),
    "link that Waypoint would follow": put_layer("terminal", entry(b"ring", LINK, text=b"/etc/shadow"), **TERMINAL),
    "FIFO that Waypoint would read": put_layer("terminal", entry(b"ring", entries.FIFO), **TERMINAL),
    "attached device": put_layer("model", entry(b"content", entries.FIFO), **ATTACHED),
    "layer with a path as its name": put_layer("../../etc", **ATTACHED),
    "layer with a wrong record": put_layer("terminal", **TERMINAL | {"rows": "many"}),
    "record of a shell in another folder": lambda forge: forge.layers.update(
        shell=ImageLayer(facts={"size_bytes": 1, "kind": "bash", "file": "../../etc/passwd"})
    ),
    "base with ..": put_facts(setting=SETTING | {"base": "/srv/../root"}),
    "base that was exported itself": put_facts(setting=BASE),
    "base without files": put_records({"capture": record(1, setting=BASE), "image": None}, {"capture": record(2)}),
    "base with an impossible name": put_records({"capture": record(), "base": "../x"}),
    "bind of a relative path": put_facts(
        setting=SETTING | {"binds": [{"source": "etc", "target": "/mnt", "readonly": True}]}
    ),
    "variable with a NUL": put_facts(setting=SETTING | {"env": {"A": "b\0c"}}),
    "limit below zero": put_facts(setting=SETTING | {"limits": {"memory": -1}}),
    "user with an impossible number": put_facts(setting=user(uid=-1)),
    "user with a number that chown ignores": put_facts(setting=user(uid=(1 << 32) - 1)),
    "unknown tier": put_facts(tier="best"),
    "condition that is none": put_facts(degraded=[{"code": 5}]),
    "branch with an impossible name": put_records({"capture": record(branch="../x")}),
    "capture that is its own parent": put_records({"capture": record(1, (1,))}),
    "captures that are each other's parents": put_records(
        {"capture": record(2, (1,)), "image": None}, {"capture": record(1, (2,))}
    ),
    "capture twice": put_records({"capture": record(1), "image": None}, {"capture": record(1)}),
    "name that is impossible": put_records({"capture": record(), "name": "../x"}),
    "name twice in the records": put_records(
        {"capture": record(1), "image": None, "name": "x"}, {"capture": record(2), "name": "x"}
    ),
    "no captures": put_records({"capture": record(1), "image": None}),
    "record of an image that is missing": put_records(
        {"capture": record(1), "image": "00" * 32}, {"capture": record(2)}
    ),
    "record that is none": put_records({"capture": {"id": "x"}}),
    "object that is longer than it may be": lambda forge: forge.rows.append(
        (msgspec.structs.replace(forge.rows[0][0], address=bytes(32), length=1 << 40), forge.rows[0][1])
    ),
    "object with the address of another": lambda forge: forge.rows.append(
        (msgspec.structs.replace(forge.rows[0][0], address=bytes(32)), forge.rows[0][1])
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_archive_is_refused_and_nothing_is_kept(store: Store, tmp_path: Path, what: str) -> None:
    forge = Forge(tmp_path / "forged")
    FORGED[what](forge)
    forge.write()
    with pytest.raises(StoreDamaged) as error:
        inspect(store, forge.path)
    assert error.value.code.endswith("-refused")
    assert (store.image_ids(), store.pack_names()) == ([], [])


def test_what_is_not_forged_is_accepted(store: Store, tmp_path: Path) -> None:
    forge = Forge(tmp_path / "archive")
    forge.write()
    found = inspect(store, forge.path)
    assert [(one.name, one.capture.tier) for one in found.captures] == [("forged", "files")]
    take_in(store, forge.path, found.digest)
    assert store.image_ids() == [found.captures[0].image]
    put_tree(forge.file(b"su", b"x", mode=0o4755))(forge)
    forge.write()
    inspect(store, forge.path)
    with pytest.raises(StoreDamaged, match="setuid"):
        inspect(store, forge.path, may_be_privileged=False)
    with pytest.raises(StoreDamaged, match="replaced by another file"):
        take_in(store, forge.path, found.digest)


def member(name: str, content: bytes = b"", **fields: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"text" * 1000,
    "cut": lambda content: content[: len(content) // 2],
    "cut by its end": lambda content: content[:-1024],
    "member that leads up": lambda content: member("../x", b"x") + content,
    "member with an absolute path": lambda content: member("/etc/x", b"x") + content,
    "link": lambda content: member("index.json", type=tarfile.SYMTYPE, linkname="/etc/passwd") + content,
    "device": lambda content: member("blobs/x", type=tarfile.CHRTYPE) + content,
    "member twice": lambda content: member("oci-layout", b"{}") + content,
    "lying size": lambda content: member("oci-layout", size=1 << 60) + content,
    "negative size": lambda content: member("oci-layout", size=-512) + content,
    "no index": lambda content: content[: content.index(b"index.json")] + bytes(1024),
    "other index": lambda content: content.replace(
        b'"schemaVersion":2,"mediaType":"application/vnd.oci.image.index', b"x" * 62
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_layout_is_refused(store: Store, tmp_path: Path, what: str) -> None:
    forge = Forge(tmp_path / "archive")
    forge.write()
    changed = DAMAGED[what](forge.path.read_bytes())
    assert changed != forge.path.read_bytes()
    forge.path.write_bytes(changed)
    with pytest.raises(StoreDamaged):
        inspect(store, forge.path)


def test_every_changed_byte_of_a_blob_is_found(store: Store, tmp_path: Path) -> None:
    forge = Forge(tmp_path / "archive")
    forge.write()
    content = forge.path.read_bytes()
    with tarfile.open(forge.path) as tar:
        blobs = [(one.offset_data, one.size) for one in tar if one.name.startswith("blobs")]
    for place, size in blobs:
        if b"rootfs" in content[place : place + size]:
            continue  # the config, which an import does not read
        for offset in range(place, place + size, max(1, size // 7)):
            damaged = bytearray(content)
            damaged[offset] ^= 1
            forge.path.write_bytes(damaged)
            with pytest.raises(StoreDamaged):
                inspect(store, forge.path)


# --- signatures


def make_keys(folder: Path, name: str) -> tuple[Path, Path]:
    private, public = folder / name, folder / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


def test_only_the_required_signature_is_accepted(store: Store, tmp_path: Path) -> None:
    private, public = make_keys(tmp_path, "key")
    _, another = make_keys(tmp_path, "another")
    image = add_capture(store, tmp_path)
    export(store, tmp_path / "signed", [image], key=str(private))
    export(store, tmp_path / "unsigned", [image])
    inspect(store, tmp_path / "signed")
    inspect(store, tmp_path / "signed", public)
    for path, key in (("signed", another), ("unsigned", public)):
        with pytest.raises(StoreDamaged) as error:
            inspect(store, tmp_path / path, key)
        assert error.value.code == "signature-refused"
    forge = Forge(tmp_path / "forged")
    forge.write(sign=lambda _: signatures.sign(b"the descriptor of another archive", "", private.read_bytes()))
    with pytest.raises(StoreDamaged, match="not signed with"):
        inspect(store, forge.path, public)
    with pytest.raises(UsageProblem):
        inspect(store, tmp_path / "signed", private)  # a private key is no public key
    with pytest.raises(UsageProblem):
        export(store, tmp_path / "new", [image], key=str(public))
    assert not (tmp_path / "new").exists()


# --- what is exported


def add_capture(store: Store, folder: Path) -> str:
    """Add an image of a session's files."""
    upper = folder / "tree/m0/upper"
    upper.mkdir(parents=True)
    (folder / "tree/m0/work").mkdir()
    (upper / "file").write_bytes(b"content" * 1000)
    os.link(upper / "file", upper / "other")
    os.symlink("file", upper / "link")
    os.mkfifo(upper / "fifo")
    os.mknod(upper / "removed", 0o020000, 0)
    (upper / "opaque").mkdir()
    os.setxattr(upper / "opaque", "trusted.overlay.opaque", b"y")
    with open(upper / "sparse", "wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
        file.truncate(2 << 20)
    os.setxattr(upper / "file", "user.any", b"\xff\0=")
    os.utime(upper / "file", ns=(0, 1_000_000_000_123_456_789))
    (upper / os.fsdecode(b"name-\xff")).write_bytes(b"")
    root = put_folder(store, folder / "tree")
    with store.writing() as writer:
        layer = ImageLayer(roots={"tree": root.hex()})
        return writer.add_image(manifest.new([], {"files": layer}, {}, FACTS))


def test_other_tools_can_read_the_layout_and_the_files(store: Store, tmp_path: Path) -> None:
    image = add_capture(store, tmp_path)
    made = export(store, tmp_path / "archive", [image])
    with tarfile.open(tmp_path / "archive") as tar:
        content = {one.name: (tar.extractfile(one) or io.BytesIO()).read() for one in tar}
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for name, blob in content.items():
        assert not name.startswith("blobs/") or hashlib.sha256(blob).hexdigest() == name.removeprefix("blobs/sha256/")
    index = json.loads(content["index.json"])
    (found,) = index["manifests"]
    assert (found["digest"], found["mediaType"]) == (made.digest, "application/vnd.oci.image.manifest.v1+json")
    oci = json.loads(content[f"blobs/{made.digest.replace(':', '/')}"])
    blobs = [content[f"blobs/{one['digest'].replace(':', '/')}"] for one in oci["layers"]]
    assert [len(blob) for blob in blobs] == [one["size"] for one in oci["layers"]]
    config = json.loads(content[f"blobs/{oci['config']['digest'].replace(':', '/')}"])
    assert oci["layers"][0]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+zstd"
    layer = zstandard.ZstdDecompressor().stream_reader(blobs[0]).read()
    assert config["rootfs"]["diff_ids"][0] == f"sha256:{hashlib.sha256(layer).hexdigest()}"
    (tmp_path / "layer.tar").write_bytes(layer)
    (tmp_path / "out").mkdir()
    out = tmp_path / "out"
    subprocess.run(["tar", "xf", tmp_path / "layer.tar", "-C", out, "--xattrs", "--xattrs-include=*"], check=True)
    assert {os.fsencode(name) for name in os.listdir(out)} == {
        *(b"file", b"other", b"link", b"fifo", b".wh.removed", b"opaque", b"sparse", b"name-\xff")
    }
    file = os.stat(out / "file")
    assert (file.st_nlink, file.st_mtime_ns) == (2, 1_000_000_000_123_456_789)
    assert os.getxattr(out / "file", "user.any") == b"\xff\0="
    assert os.listdir(out / "opaque") == [".wh..wh..opq"]
    assert (out / "sparse").read_bytes() == bytes(1 << 20) + b"end" + bytes((1 << 20) - 3)
    assert os.stat(out / "sparse").st_blocks * 512 < 1 << 20


def test_an_archive_has_what_its_images_need_also_differences(store: Store, tmp_path: Path) -> None:
    image = add_capture(store, tmp_path)
    base = os.urandom(100_000)
    with store.writing() as writer:
        first = writer.put(Kind.DATA, base)
        second = writer.put(Kind.DATA, base[:-1] + b"x", first)
        row = entry(b"big", FILE, rows=[(second, len(base))])
        below = writer.put(Kind.TREE, entries.encode([row]))
        root = writer.put(Kind.ROOT, entries.encode(entries.Root(entry(rows=[(below, 1)]), [])))
        found = writer.store.read_image(image)
        layer = ImageLayer(roots={"tree": found.layers["files"].roots["tree"], "memory": root.hex()})
        image = writer.add_image(manifest.new([], {"files": layer}, {}, FACTS))
    export(store, tmp_path / "archive", [image])
    with pytest.raises(StateConflict):
        export(store, tmp_path / "archive", [image])
    other = make_store(str(tmp_path / "other"))
    take_in(other, tmp_path / "archive", inspect(other, tmp_path / "archive").digest)
    assert other.image_ids() == [image]
    assert upkeep.verify(other, read_data=True) == []
    taken = take_out(other, root, tmp_path / "taken")
    assert (taken / "big").read_bytes() == base[:-1] + b"x"


@pytest.mark.parametrize("step", [Step.PACK_WRITTEN, Step.PACK_NAMED, Step.INDEXED, Step.PACKS_DURABLE])
def test_an_import_that_is_killed_leaves_no_image_and_a_gc_removes_the_rest(
    store: Store, tmp_path: Path, step: Step
) -> None:
    export(store, tmp_path / "archive", [add_capture(store, tmp_path)])
    path, found = tmp_path / "archive", inspect(store, tmp_path / "archive")
    other = make_store(str(tmp_path / "other"))
    pid = os.fork()
    if not pid:
        steps.observe(lambda reached: os._exit(7) if reached == step else None)
        take_in(other, path, found.digest)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert other.image_ids() == []
    upkeep.gc(other, [])
    assert other.pack_names() == []
    take_in(other, path, found.digest)
    assert len(other.image_ids()) == 1


KEPT = Path(__file__).parent / "kept"


def test_an_archive_of_format_1_is_read(store: Store, tmp_path: Path) -> None:
    found = inspect(store, KEPT / "archive-1.tar", KEPT / "archive-1.pub")
    assert [one.image for one in found.captures] == ["5babd96019461b54985a5d124c9f356ba4eeef8a7689007ba8232c5b2b30afce"]
    take_in(store, KEPT / "archive-1.tar", found.digest)
    (root,) = store.read_image("5babd96019461b54985a5d124c9f356ba4eeef8a7689007ba8232c5b2b30afce").roots()
    upper = take_out(store, root, tmp_path / "copy") / "m0/upper"
    assert (upper / "file").read_bytes() == b"content" * 1000
    assert (upper / "sparse").stat().st_size == 2 << 20
