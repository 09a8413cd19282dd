"""Which image of an OCI layout or a `docker save` archive is unpacked, with its configuration and layers.

Sources: the OCI image specification 1.1 (image-index.md, manifest.md, config.md); Docker Image Specification v1.2.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from waypoint.model.records import ImageConfig, ImageText
from waypoint.store.archives.layout import (
    CONFIG_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    BadLayout,
    Descriptor,
    OciIndex,
    OciManifest,
    Platform,
    Sha256,
    decoded,
)
from waypoint.store.oci.files import Files

_DOCKER = "application/vnd.docker"
_INDEX_TYPES = (INDEX_TYPE, f"{_DOCKER}.distribution.manifest.list.v2+json")
_MANIFEST_TYPES = (MANIFEST_TYPE, f"{_DOCKER}.distribution.manifest.v2+json")
_CONFIG_TYPES = (CONFIG_TYPE, f"{_DOCKER}.container.image.v1+json")
_LAYER_TYPE = re.compile(r"application/vnd\..*\.(tar|tar[.+]gzip|tar[.+]zstd)")
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_MAX_JSON = 4 << 20
_MAX_IMAGES = 1000
_MAX_LAYERS = 1000
_MAX_DEPTH = 4
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "ppc64le": "ppc64le"}
_USUAL_VARIANTS = ("", "v8")


class _Run(msgspec.Struct, frozen=True):
    """How a container is started, as in the configuration."""

    env: list[ImageText] | None = msgspec.field(default=None, name="Env")
    working_dir: ImageText | None = msgspec.field(default=None, name="WorkingDir")
    user: ImageText | None = msgspec.field(default=None, name="User")
    entrypoint: list[ImageText] | None = msgspec.field(default=None, name="Entrypoint")
    cmd: list[ImageText] | None = msgspec.field(default=None, name="Cmd")
    exposed_ports: dict[ImageText, object] | None = msgspec.field(default=None, name="ExposedPorts")


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: list[Sha256]


class _Config(msgspec.Struct, frozen=True):
    architecture: str
    os: str
    rootfs: _RootFs
    variant: str = ""
    config: _Run | None = None


class _Saved(msgspec.Struct, frozen=True):
    """An image of `docker save`."""

    config: str = msgspec.field(name="Config")
    layers: list[str] = msgspec.field(name="Layers")
    tags: list[str] | None = msgspec.field(default=None, name="RepoTags")


class Layer(NamedTuple):
    """`file`: its name. `diff_id`: SHA-256 of the tar. `descriptor`: of the file; None in `docker save`."""

    file: str
    diff_id: str
    descriptor: Descriptor | None


class Image(NamedTuple):
    """`digest`: of its manifest, or of its configuration in `docker save`."""

    digest: str
    name: str
    platform: Platform
    config: ImageConfig
    layers: list[Layer]


def machine_platform() -> str:
    """The platform of this machine, as images name it."""
    machine = os.uname().machine
    return f"linux/{_MACHINES.get(machine, machine)}"


def is_image(files: Files) -> bool:
    return "oci-layout" in files or "manifest.json" in files


def choose(files: Files, platform: str) -> Image:
    """The only image for `platform` ("linux/amd64", "linux/arm/v7"). Raises BadLayout."""
    images = _oci_images(files, platform) if "oci-layout" in files else _saved_images(files)
    found: dict[str, Image] = {}
    others: set[str] = set()
    for one in images:
        if isinstance(one, Platform) or not _fits(one.platform, platform):
            others.add(_shown(one if isinstance(one, Platform) else one.platform))
        else:
            found.setdefault(one.digest, one)
    usual = [one for one in found.values() if one.platform.variant in _USUAL_VARIANTS] or list(found.values())
    if not usual:
        has = f", but for {', '.join(sorted(others)[:20])}" if others else ""
        raise BadLayout(f"it has no image for {platform}{has}")
    if len(usual) > 1:
        names = ", ".join(sorted(one.name or one.digest[7:19] for one in usual)[:20])
        raise BadLayout(f"it has several images for {platform}: {names}; save one of them alone")
    return usual[0]


def _fits(platform: Platform, wanted: str) -> bool:
    return wanted in (f"{platform.os}/{platform.architecture}", _shown(platform))


def _shown(platform: Platform) -> str:
    return "/".join(filter(None, (platform.os, platform.architecture, platform.variant)))


def _oci_images(files: Files, wanted: str) -> Iterator[Image | Platform]:
    """The images of the layout that may fit, and the platforms of the others, whose files may be missing."""
    index = decoded(_read(files, "index.json"), OciIndex, "index.json")
    waiting = [(one, 1) for one in reversed(index.manifests)]
    seen = 0
    while waiting:
        one, depth = waiting.pop()
        seen += 1
        if seen > _MAX_IMAGES:
            raise BadLayout("it has too many images")
        if one.platform is not None and not _fits(one.platform, wanted):
            if one.platform.os != "unknown":  # not an attestation of another image
                yield one.platform
        elif one.media_type in _INDEX_TYPES and depth < _MAX_DEPTH:
            inner = decoded(read_blob(files, one), OciIndex, "an index")
            names = {"annotations": one.annotations}
            waiting += [
                (msgspec.structs.replace(below, **({} if below.annotations else names)), depth + 1)
                for below in reversed(inner.manifests)
            ]
        elif one.media_type in _MANIFEST_TYPES:
            manifest = decoded(read_blob(files, one), OciManifest, "a manifest")
            if manifest.config.media_type in _CONFIG_TYPES:
                yield _oci_image(files, one, manifest)


def _oci_image(files: Files, one: Descriptor, manifest: OciManifest) -> Image:
    for layer in manifest.layers:
        if not _LAYER_TYPE.fullmatch(layer.media_type):
            raise BadLayout(f"it has a layer of another type than tar: {layer.media_type[:120]}")
    config = decoded(read_blob(files, manifest.config), _Config, "the configuration")
    layers = [(blob_name(layer.digest), layer) for layer in manifest.layers]
    name = next((one.annotations[key] for key in _NAMES if key in one.annotations), "")
    return _image(one.digest, name, config, layers)


def _saved_images(files: Files) -> Iterator[Image]:
    for one in decoded(_read(files, "manifest.json"), list[_Saved], "manifest.json")[:_MAX_IMAGES]:
        content = _read(files, one.config)
        digest = hashlib.sha256(content).hexdigest()
        stated = re.search(r"[0-9a-f]{64}", one.config)
        if stated and stated[0] != digest:
            raise BadLayout("the configuration has another digest than its name")
        config = decoded(content, _Config, "the configuration")
        name = (one.tags or [""])[0]
        yield _image(f"sha256:{digest}", name, config, [(layer, None) for layer in one.layers])


def _image(digest: str, name: str, config: _Config, layers: Sequence[tuple[str, Descriptor | None]]) -> Image:
    diff_ids = config.rootfs.diff_ids
    if len(diff_ids) != len(layers):
        raise BadLayout(f"it has {len(layers)} layers, and its configuration has the digests of {len(diff_ids)}")
    if len(layers) > _MAX_LAYERS:
        raise BadLayout(f"it has {len(layers)} layers; at most {_MAX_LAYERS} are accepted")
    found = [Layer(file, diff_id, descriptor) for (file, descriptor), diff_id in zip(layers, diff_ids, strict=True)]
    platform = Platform(os=config.os, architecture=config.architecture, variant=config.variant)
    return Image(digest, name, platform, _run_config(config.config or _Run()), found)


def _run_config(run: _Run) -> ImageConfig:
    return ImageConfig(
        env=[one for one in run.env or [] if "=" in one[1:]],
        working_dir=run.working_dir or "",
        user=run.user or "",
        entrypoint=run.entrypoint or [],
        cmd=run.cmd or [],
        exposed_ports=sorted(run.exposed_ports or {}),
    )


def blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def read_blob(files: Files, one: Descriptor) -> bytes:
    """The content of a small blob, whose size and digest are checked."""
    content = _read(files, blob_name(one.digest))
    if len(content) != one.size or hashlib.sha256(content).hexdigest() != one.digest[7:]:
        raise BadLayout(f"the blob {one.digest[7:23]} has another size or digest than its descriptor")
    return content


def _read(files: Files, name: str) -> bytes:
    with files.open(name) as part:
        if part.size > _MAX_JSON:
            raise BadLayout(f"{name[:120]} has {part.size} bytes; at most {_MAX_JSON} are accepted")
        return part.read()
