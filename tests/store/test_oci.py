"""Container images become folders, layer by layer; damaged and hostile ones are refused."""

import gzip
import json
import os
import stat
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.collecting import collecting
from tests.store import oci_images
from tests.store.oci_images import Image, Member, folder, hard_link, layer, link, put_layout, put_saved, tar_of
from waypoint.linux.storage import filesystem
from waypoint.model.errors import StoreDamaged, UsageProblem
from waypoint.store.oci.image import OciImage, Source, unpack_oci

pytestmark = pytest.mark.privileged

CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)  # cap_net_bind_service, effective
RUN: dict[str, Any] = {
    "Env": ["PATH=/opt/bin:/bin", "WORD=a=b", "no-value"],
    "WorkingDir": "/srv",
    "User": "app:staff",
    "Entrypoint": ["/entry"],
    "Cmd": None,
    "ExposedPorts": {"80/tcp": {}},
}


def unpack(source: Path, target: Path, **options: Any) -> OciImage:
    target.mkdir()
    flags = os.O_RDONLY | os.O_CLOEXEC
    fds = [os.open(source, flags), os.open(target, flags)]
    try:
        return unpack_oci(Source(fds[0], str(source)), fds[1], str(target.parent), **options)
    finally:
        for fd in fds:
            os.close(fd)


def unpack_layers(place: Path, *layers: bytes) -> Path:
    put_layout(place / "image", Image(layers))
    unpack(place / "image", place / "tree")
    return place / "tree"


def refusal(place: Path, *images: Image) -> str:
    place.mkdir()
    put_layout(place / "image", *images)
    with pytest.raises(StoreDamaged) as error:
        unpack(place / "image", place / "tree")
    assert error.value.code == "image-refused"
    assert not (place / "outside").exists()
    return error.value.said


def listing(tree: Path) -> dict[str, tuple[Any, ...]]:
    """All facts of all files in the folder, by path."""
    found: dict[str, tuple[Any, ...]] = {}
    inodes: dict[int, str] = {}
    for path in sorted([tree, *tree.rglob("*")]):
        facts, name = path.lstat(), str(path.relative_to(tree))
        content: object = None
        if stat.S_ISREG(facts.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(facts.st_mode):
            content = os.readlink(path)
        attributes = {
            one: os.getxattr(path, one, follow_symlinks=False) for one in os.listxattr(path, follow_symlinks=False)
        }
        first = inodes.setdefault(facts.st_ino, name)
        found[name] = (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, content, attributes, first)
    return found


FIRST = layer(
    folder("./", mode=0o711, mtime=5),
    folder("usr/", mtime=7),
    folder("usr/lib", mode=0o2775, owner=(0, 50), mtime=8),
    link("lib", "usr/lib", owner=(3, 4), mtime=9),
    Member("usr/lib/old", content=b"old", mtime=1),
    Member(
        "usr/lib/kept", content=b"kept" * 1000, mode=0o4711, owner=(7, 70000), pax={"mtime": "1700000000.123456789"}
    ),
    folder("etc", mtime=3),
    Member("etc/first", content=b"1"),
    folder("etc/conf"),
    Member("etc/conf/below", content=b"2"),
    Member("gone", content=b"3"),
    Member("shape", content=b"a file that becomes a folder"),
    Member("pipe", tarfile.FIFOTYPE, mode=0o600),
    Member("dev/null", tarfile.CHRTYPE),
)
SECOND = layer(
    hard_link("lib/again", "lib/kept"),
    Member("lib/new", content=b"by the link", pax={"SCHILY.xattr.user.note": "n", "SCHILY.xattr.trusted.x": "no"}),
    Member("lib/able", mode=0o755, pax={"SCHILY.xattr.security.capability": os.fsdecode(CAPABILITY)}),
    Member("usr/lib/.wh.old"),
    Member(".wh.gone"),
    Member("etc/second", content=b"4"),
    Member("etc/.wh..wh..opq"),
    folder("shape"),
    Member("shape/inside", content=b"5", mtime=11),
    Member("n" * 200 + "/" + "m" * 200, content=b"long"),
)
EXPECTED = {
    ".": (stat.S_IFDIR | 0o711, 0, 0, 5),
    "etc": (stat.S_IFDIR | 0o755, 0, 0, 3),
    "lib": (stat.S_IFLNK | 0o777, 3, 4, 9),
    "usr/lib": (stat.S_IFDIR | 0o2775, 0, 50, 8),
    "usr/lib/kept": (stat.S_IFREG | 0o4711, 7, 70000, 1700000000.123456789),
    "pipe": (stat.S_IFIFO | 0o600, 0, 0, 0),
    "n" * 200: (stat.S_IFDIR | 0o755, 0, 0, 0),
}


def test_layers_become_one_folder_however_the_image_is_saved(tmp_path: Path) -> None:
    image = Image([FIRST, SECOND, FIRST, SECOND], RUN)
    zstd, plain = (Image(image.layers, RUN, compression=kind) for kind in ("+zstd", ""))
    sources: dict[str, Callable[[Path], Path]] = {
        "folder": lambda place: put_layout(place, image),
        "folder-zstd": lambda place: put_layout(place, zstd),
        "archive": lambda place: tar_of(put_layout(place, plain)),
        "compressed-archive": lambda place: tar_of(put_layout(place, image), oci_images.COMPRESSED["+gzip"]),
        "saved": lambda place: tar_of(put_saved(place, image)),
        "saved-zstd": lambda place: tar_of(put_saved(place, image), oci_images.COMPRESSED["+zstd"]),
    }
    found = {}
    for name, make in sources.items():
        source, target = make(tmp_path / name), tmp_path / f"{name}-tree"
        done = unpack(source, target)
        found[name] = listing(target)
        assert done.config.env == ["PATH=/opt/bin:/bin", "WORD=a=b"]
        assert (done.config.working_dir, done.config.user, done.config.exposed_ports) == (
            "/srv",
            "app:staff",
            ["80/tcp"],
        )
        assert (done.config.entrypoint, done.config.cmd) == (["/entry"], [])
        assert [(one.code, one.subject, one.detail) for one in done.degraded] == [
            ("devices-left-out", "dev/null, dev/null", "2"),
            ("attributes-left-out", "trusted.x", "2"),
        ]
    tree = found["folder"]
    assert all(one == tree for one in found.values())
    for path, (mode, uid, gid, mtime) in EXPECTED.items():
        assert tree[path][:4] == (mode, uid, gid, pytest.approx(mtime * 1e9, abs=200)), path
    assert tree["usr/lib/kept"][3] == 1700000000123456789
    assert tree["usr/lib/again"] == (*tree["usr/lib/kept"][:6], "usr/lib/again")
    assert (tree["usr/lib/new"][4], tree["usr/lib/new"][5]) == (b"by the link", {"user.note": b"n"})
    assert tree["usr/lib/able"][5] == {"security.capability": CAPABILITY}
    assert {path for path in tree if path.startswith(("etc", "shape", "gone"))} == {
        *("etc", "etc/second", "shape", "shape/inside")
    }
    assert {"usr/lib/old", "dev/null"}.isdisjoint(tree)


def test_a_whiteout_hides_lower_layers_only(tmp_path: Path) -> None:
    below = layer(*(Member(f"{top}/{name}") for top in "abc" for name in ("low", "x/low")))
    above = layer(
        *(Member("a/x/own"), Member("a/.wh..wh..opq"), Member("a/late")),
        *(Member("b/.wh.x"), Member("b/x/own"), Member(".wh.never-there"), Member("never/.wh.there")),
        *(Member("c/x/own"), Member("c/.wh.x"), Member(".wh..wh.aufs")),
    )
    tree = unpack_layers(tmp_path, below, above)
    files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    assert files == ["a/late", "a/x/own", "b/low", "b/x/own", "c/low", "c/x/own"]
    assert not (tree / "never").exists()


def test_files_with_holes_keep_them(tmp_path: Path) -> None:
    content = b"x" * 4096
    head = b"2\n4096\n4096\n1073741824\n0\n".ljust(512, b"\0")
    names = {"major": "1", "minor": "0", "name": "sparse", "realsize": "1073741824"}
    one = Member("GNUSparseFile.0/sparse", content=head + content, pax={f"GNU.sparse.{k}": v for k, v in names.items()})
    file = unpack_layers(tmp_path, layer(one)) / "sparse"
    assert (file.stat().st_size, file.stat().st_blocks <= 64) == (1 << 30, True)
    with file.open("rb") as opened:
        assert opened.read(8193) == bytes(4096) + content + b"\0"


def test_hostile_members_are_refused(tmp_path: Path) -> None:
    outside = str(tmp_path)
    pax = {"SCHILY.xattr.user.big": "x" * (2 << 20)}
    holes = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "9"}
    bad: dict[str, tuple[str, list[Member]]] = {
        "up": ("has '..'", [Member("../outside")]),
        "up-inside": ("has '..'", [Member("a/../../outside")]),
        "up-whiteout": ("impossible whiteout", [Member(".wh...")]),
        "link-up": ("has '..'", [hard_link("a", "../etc/passwd")]),
        "link-missing": ("No such file", [hard_link("a", "/etc/passwd")]),
        "link-to-folder": ("not permitted", [folder("d"), hard_link("a", "d")]),
        "through-a-link": ("File exists", [link("a", outside), Member("a/outside")]),
        "through-a-loop": ("symbolic links", [link("a", "a"), Member("a/outside")]),
        "through-a-file": ("Not a directory", [Member("a"), Member("a/b")]),
        "link-through-a-link": ("No such file", [link("a", "/etc"), hard_link("b", "a/passwd")]),
        "link-to-nothing": ("impossible path", [link("a", "")]),
        "root-is-a-file": ("root is no folder", [Member(".")]),
        "long-name": ("name too long", [Member("x" * 300)]),
        "long-path": ("path is impossible", [Member("x/" * 3000)]),
        "nobody": ("impossible owner", [Member("a", owner=(0, (1 << 32) - 1))]),
        "type": ("unknown type", [Member("a", type=b"Z")]),
        "acl": ("Invalid argument", [Member("a", pax={"SCHILY.xattr.system.posix_acl_access": "x"})]),
        "attributes": ("too long", [Member("a", pax=pax)]),
        "holes": ("impossible header", [Member("a", content=b"hello".ljust(512), pax=holes)]),
        "holes-beyond": ("map of holes", [Member("a", content=b"1\n8\n5\n".ljust(512, b"\0") + b"12345", pax=holes)]),
        "many-holes": ("too long", [Member("a", content=b"9999999\n" + b"1\n" * (3 << 20), pax=holes)]),
    }
    with collecting() as check:
        for name, (words, members) in bad.items():
            with check(name):
                assert words in refusal(tmp_path / name, Image([layer(*members)]))


def test_links_are_resolved_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/victim").write_text("whole")
    out = str(tmp_path / "outside")
    members = [
        *(
            folder(out),
            link("a", out),
            Member("a/file", content=b"in"),
            Member("a/.wh.victim"),
            Member("a/.wh..wh..opq"),
        ),
        *(link("b", "../../../.." + out), Member("b/.wh.victim"), Member(f"{out}/victim"), Member("b/victim")),
    ]
    tree = unpack_layers(tmp_path, layer(*members), layer(link("c", f"{out}/victim"), Member("c", content=b"replaced")))
    assert sorted(path.name for path in (tree / out[1:]).iterdir()) == ["file", "victim"]
    assert (tree / "c").read_text() == "replaced"
    assert [path.read_text() for path in (tmp_path / "outside").iterdir()] == ["whole"]


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    image = Image([layer(Member("file", content=bytes(100_000)))])
    _, (manifest, config, packed) = image.blobs()

    def changed(name: str, content: bytes) -> Callable[[Path], object]:
        return lambda place: (place / "blobs/sha256" / name).write_bytes(content)

    def names(content: bytes) -> str:
        return oci_images.digest(content)[7:]

    def other_config(place: Path) -> None:
        put_layout(place, Image([layer(Member("other"))]))
        other = Image([layer(Member("other"))]).config()
        lying = json.loads(manifest) | {"config": oci_images.descriptor(oci_images.CONFIG, other)}
        content = json.dumps(lying).encode()
        oci_images.put_blobs(place, [content])
        rows = [oci_images.descriptor(oci_images.MANIFEST, content)]
        (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}))

    cases: dict[str, tuple[str, Callable[[Path], object]]] = {
        "layer": ("another size or digest", changed(names(packed), packed[:4] + b"\1" + packed[5:])),
        "short-layer": ("cannot be decompressed", changed(names(packed), packed[:-9])),
        "longer-layer": ("another size or digest", changed(names(packed), packed + bytes(9))),
        "config": ("another size or digest", changed(names(config), config.replace(b"linux", b"Linux"))),
        "manifest": ("another size or digest", changed(names(manifest), manifest + b" ")),
        "missing": ("cannot be read", lambda place: (place / "blobs/sha256" / names(packed)).unlink()),
        "link": ("cannot be read", lambda place: _make_link(place / "blobs/sha256" / names(packed))),
        "no-layer": ("no tar archive", changed(names(packed), b"no tar")),
        "other-config": ("another content", other_config),
        "no-json": ("index.json cannot be read", lambda place: (place / "index.json").write_text("[")),
        "no-image": (
            "no image for",
            lambda place: (place / "index.json").write_text('{"schemaVersion":2,"manifests":[]}'),
        ),
        "nothing": ("neither the file oci-layout", lambda place: (place / "oci-layout").unlink()),
    }
    with collecting() as check:
        for name, (words, damage) in cases.items():
            with check(name):
                place = put_layout(tmp_path / name, image)
                damage(place)
                with pytest.raises(UsageProblem if name == "nothing" else StoreDamaged, match=words):
                    unpack(place, tmp_path / f"{name}-tree")
        whole = tar_of(put_layout(tmp_path / "whole", image)).read_bytes()
        for size in (0, 100, 512, len(whole) // 2):
            with check(f"{size} bytes of the archive"):
                (tmp_path / "short.tar").write_bytes(whole[:size])
                with pytest.raises(UsageProblem):
                    unpack(tmp_path / "short.tar", tmp_path / f"short-{size}")


def _make_link(place: Path) -> None:
    place.rename(place.parent / "aside")
    place.symlink_to("aside")


def test_an_image_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "free_bytes", lambda path: 1 << 20)
    bomb = Image([layer(Member("zeros", content=bytes(8 << 20)))])
    assert "more than the 1048576 bytes" in refusal(tmp_path / "layer", bomb)
    archive = tar_of(put_layout(tmp_path / "image", Image(bomb.layers, compression="")), gzip.compress)
    with pytest.raises(UsageProblem, match="more than the 1048576 bytes"):
        unpack(archive, tmp_path / "tree")


def test_the_image_for_this_machine_is_chosen(tmp_path: Path) -> None:
    own, other = (Image([layer(Member(name))], architecture=name) for name in (oci_images.MACHINE, "s390x"))
    note = Image([layer(Member("note"))], architecture="unknown")
    lacking = {**Image([], architecture="mips").blobs()[0], "platform": {"os": "linux", "architecture": "mips"}}
    attestation = {**note.blobs()[0], "platform": {"os": "unknown", "architecture": "unknown"}}
    many = put_layout(tmp_path / "many", other, own, more=[lacking, attestation])
    assert unpack(many, tmp_path / "own").platform == f"linux/{oci_images.MACHINE}"
    assert os.listdir(tmp_path / "own") == [oci_images.MACHINE]
    unpack(many, tmp_path / "other", platform="linux/s390x")
    assert os.listdir(tmp_path / "other") == ["s390x"]
    inner = (many / "index.json").read_bytes()
    oci_images.put_blobs(many, [inner])
    rows = [oci_images.descriptor(oci_images.INDEX, inner)]
    (many / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}))
    unpack(many, tmp_path / "nested")
    assert os.listdir(tmp_path / "nested") == [oci_images.MACHINE]
    assert (
        refusal(tmp_path / "foreign", other) == f"it has no image for linux/{oci_images.MACHINE}, but for linux/s390x"
    )
    twin = Image([layer(Member("twin"))])
    assert f"several images for linux/{oci_images.MACHINE}" in refusal(tmp_path / "twins", own, twin)
