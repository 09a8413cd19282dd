"""Container images that tests make, with Python's own tarfile: as a layout, and as `docker save` writes them."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "+gzip": lambda content: gzip.compress(content, 1),
    "+zstd": zstandard.ZstdCompressor().compress,
}


class Member(NamedTuple):
    name: str
    type: bytes = tarfile.REGTYPE
    content: bytes = b""
    to: str = ""
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    mtime: float = 0
    pax: dict[str, str] = {}  # noqa: RUF012


def folder(name: str, mode: int = 0o755, **facts: Any) -> Member:
    return Member(name, tarfile.DIRTYPE, mode=mode, **facts)


def link(name: str, to: str, **facts: Any) -> Member:
    return Member(name, tarfile.SYMTYPE, to=to, **facts)


def hard_link(name: str, to: str) -> Member:
    return Member(name, tarfile.LNKTYPE, to=to)


def layer(*members: Member) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in members:
            info = tarfile.TarInfo(one.name)
            info.type, info.mode, info.linkname, info.mtime = one.type, one.mode, one.to, one.mtime
            (info.uid, info.gid), info.size, info.pax_headers = one.owner, len(one.content), dict(one.pax)
            tar.addfile(info, io.BytesIO(one.content))
    return out.getvalue()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(media_type: str, content: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(content), "size": len(content), **more}


@dataclass
class Image:
    """`layers`: tars. `compression`: a key of COMPRESSED."""

    layers: Sequence[bytes]
    run: dict[str, Any] = field(default_factory=dict)
    architecture: str = MACHINE
    compression: str = "+gzip"

    def config(self) -> bytes:
        diff_ids = [digest(one) for one in self.layers]
        facts = {"architecture": self.architecture, "os": "linux", "config": self.run}
        return json.dumps({**facts, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()

    def blobs(self) -> tuple[dict[str, Any], list[bytes]]:
        """The descriptor of the manifest, and the content of all blobs, the manifest first."""
        config, packed = self.config(), [COMPRESSED[self.compression](one) for one in self.layers]
        layers = [descriptor(LAYER + self.compression, one) for one in packed]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": layers}
        content = json.dumps(manifest).encode()
        return descriptor(MANIFEST, content), [content, config, *packed]


def put_blobs(place: Path, blobs: Sequence[bytes]) -> None:
    (place / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    for one in blobs:
        (place / "blobs/sha256" / digest(one)[7:]).write_bytes(one)


def put_layout(place: Path, *images: Image, more: Sequence[dict[str, Any]] = ()) -> Path:
    """Write an image layout to the new folder. `more`: other rows of its index."""
    rows = list(more)
    for image in images:
        row, blobs = image.blobs()
        put_blobs(place, blobs)
        rows.append({**row, "platform": {"os": "linux", "architecture": image.architecture}})
    put_blobs(place, [])
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}))
    return place


def put_saved(place: Path, image: Image) -> Path:
    """Write the folder whose tar an old `docker save` writes: equal layers are links to the first."""
    config = image.config()
    name = f"{digest(config)[7:]}.json"
    place.mkdir()
    (place / name).write_bytes(config)
    first: dict[str, int] = {}
    for number, one in enumerate(image.layers):
        (place / str(number)).mkdir()
        file = place / str(number) / "layer.tar"
        if digest(one) in first:
            file.symlink_to(f"../{first[digest(one)]}/layer.tar")
        else:
            file.write_bytes(one)
            first[digest(one)] = number
    layers = [f"{number}/layer.tar" for number in range(len(image.layers))]
    row = {"Config": name, "RepoTags": ["thing:latest"], "Layers": layers}
    (place / "manifest.json").write_text(json.dumps([row]))
    return place


def tar_of(place: Path, compress: Callable[[bytes], bytes] = bytes) -> Path:
    """The folder as one archive beside it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(place, ".")
    archive = place.with_suffix(".tar")
    archive.write_bytes(compress(out.getvalue()))
    return archive
