"""The captures in an archive, which may be hostile: checked, so that Waypoint could have written each of them."""

import re
from typing import Any

import msgspec

from waypoint.capture.storing.base_records import SETTING
from waypoint.capture.storing.orders import Arrived
from waypoint.model.conditions import Degradation
from waypoint.model.names import is_name
from waypoint.model.records import (
    AttachedLayer,
    Bind,
    Capture,
    FilesLayer,
    Layers,
    Machine,
    ProcessesLayer,
    ProgramsLayer,
    Setting,
    ShellLayer,
    TerminalLayer,
    Tier,
)
from waypoint.store import entries, trees
from waypoint.store.archives.archive import Archive, refused
from waypoint.store.archives.weighing import Odd, Weights
from waypoint.store.manifest import Manifest

_BLOCK = 4096
_LATEST = 1 << 33
"""Seconds since the epoch."""
_KNOWN = {one.KIND: one for one in (FilesLayer, ProcessesLayer, ProgramsLayer, TerminalLayer, ShellLayer)}
_ATTACHED_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_OWN_FIELDS: dict[str, dict[str, Any]] = {"files": {"tree": ""}, "processes": {"frozen_us": 0}}
_SESSION = Odd.SYMLINK | Odd.SPECIAL | Odd.WHITEOUT | Odd.PRIVILEGED
_MAY_HAVE = {("files", "tree"): _SESSION, ("files", "memory"): _SESSION & ~Odd.WHITEOUT}
"""What the folders of Waypoint's own layers may have besides files and folders: in all others, Waypoint itself reads
files by name.
"""
_IN_MOUNT = (b"upper", b"work")
"""In the folder of a mount (upper/layout.py)."""
_ATTACHED_MAY_HAVE = Odd.SYMLINK | Odd.PRIVILEGED


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`Manifest.facts`."""

    tier: Tier
    setting: Setting
    degraded: list[Degradation]
    folder: str
    exit: int | None


class _Platform(msgspec.Struct, frozen=True, kw_only=True):
    kernel: str
    architecture: str
    cpu: str
    cpu_features: list[str]


def arrived(archive: Archive, max_bytes: int, *, may_be_privileged: bool) -> list[Arrived]:
    """The captures, parents first. Raises StoreDamaged for captures that Waypoint cannot have written."""
    try:
        told = msgspec.json.decode(archive.records, type=list[Arrived])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refused(f"its captures cannot be read: {error}") from error
    if (
        not told
        or told[-1].image is None
        or not told[-1].name
        or {one.image for one in told} - {None} != archive.manifests.keys()
    ):
        raise refused("its captures are not those of its images")
    weights, seen, names, bases = Weights(archive), set[str](), set[str](), set[str]()
    found = []
    for one in told:
        if one.capture.id in seen or not seen.issuperset(one.capture.parents):
            raise refused("a capture in it comes twice, or before its parents")
        if (one.name and not is_name(one.name)) or (one.name and one.name in names):
            raise refused(f"it has an impossible or repeated name of a checkpoint: {one.name[:120]!r}")
        if one.base and not is_name(one.base):
            raise refused(f"it has an impossible name of a base: {one.base[:120]!r}")
        names.add(one.name)
        seen.add(one.capture.id)
        capture = one.capture
        if one.image is not None:
            manifest = archive.manifests[one.image]
            _check_content(archive, manifest, weights, max_bytes, may_be_privileged=may_be_privileged)
            capture = _as_manifest(manifest, capture)
        else:
            capture = msgspec.structs.replace(capture, layers={"files": {"tree": ""}})
        _check(capture)
        if capture.is_base:
            _check_base(one, capture, weights, archive)
            bases.add(capture.id)
        elif not bases.isdisjoint(capture.parents):
            raise refused("a capture in it continues from a base")
        found.append(msgspec.structs.replace(one, capture=capture))
    return found


def _check_content(
    archive: Archive, manifest: Manifest, weights: Weights, max_bytes: int, *, may_be_privileged: bool
) -> None:
    size = 0
    for kind, layer in manifest.layers.items():
        for part, digest in layer.roots.items():
            weight = weights.of(bytes.fromhex(digest))
            allowed = _MAY_HAVE.get((kind, part), Odd(0)) if kind in _KNOWN else _ATTACHED_MAY_HAVE
            if weight.odd & ~allowed:
                said = f"its layer {kind} contains files that such layers never have: {_names(weight.odd & ~allowed)}"
                raise refused(said, "image-refused")
            if weight.odd & Odd.PRIVILEGED and not may_be_privileged:
                said = "it contains files with setuid bits or capabilities; sessions here have the ids of the machine"
                raise refused(said, "image-refused")
            size += weight.size + weight.names * _BLOCK
    if size > max_bytes:
        raise refused(f"an image in it needs {size} bytes on disk, and {max_bytes} are free")
    tree = manifest.layers["files"].roots.get("tree") if "files" in manifest.layers else None
    if tree is None:
        raise refused("an image in it has no files")
    for mount in trees.read_entries(archive, trees.read_root(archive, bytes.fromhex(tree)).entry):
        is_mount = mount.type == entries.FOLDER and mount.name.startswith(b"m")
        inside = trees.read_entries(archive, mount) if is_mount else []
        if not is_mount or any(one.type != entries.FOLDER or one.name not in _IN_MOUNT for one in inside):
            raise refused(f"the files of an image in it are not those of a session: {mount.name!r}", "image-refused")


def _check_base(one: Arrived, capture: Capture, weights: Weights, archive: Archive) -> None:
    """Raise StoreDamaged for a pinned base that Waypoint does not make: its image must be as its files alone define."""
    manifest = archive.manifests[one.image] if one.image is not None else None
    roots = manifest.layers["files"].roots if manifest is not None and list(manifest.layers) == ["files"] else {}
    setting = msgspec.structs.replace(capture.setting, image=None)
    is_plain = list(roots) == ["tree"] and manifest is not None and not manifest.parents and not manifest.platform
    if not is_plain or one.name or capture.parents or (setting, capture.tier) != (SETTING, "files"):
        raise refused("a base in it is not as Waypoint makes bases", "image-refused")
    if weights.of(bytes.fromhex(roots["tree"])).odd & Odd.WHITEOUT:
        raise refused("a base in it contains device nodes", "image-refused")


def _names(odd: Odd) -> str:
    return ", ".join(str(one.name).lower() for one in Odd if one & odd)


def _as_manifest(manifest: Manifest, told: Capture) -> Capture:
    """The record, in which all that the manifest has is as the manifest says."""
    try:
        facts = msgspec.convert(manifest.facts, _Facts, strict=False)
        layers: Layers = {kind: _record(kind, layer.facts) for kind, layer in manifest.layers.items()}
        machine = None
        if manifest.platform:
            platform = msgspec.convert(manifest.platform, _Platform)
            boot_id = told.machine.boot_id if told.machine is not None else ""
            machine = Machine(boot_id=boot_id, **msgspec.structs.asdict(platform))
    except msgspec.ValidationError as error:
        raise refused(f"an image in it cannot be read: {error}") from error
    return msgspec.structs.replace(
        told,
        tier=facts.tier,
        setting=msgspec.structs.replace(facts.setting, publish=[]),  # another machine must open no port here
        degraded=facts.degraded,
        folder=facts.folder,
        exit=facts.exit,
        machine=machine,
        layers=layers,
    )


def _record(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    if kind not in _KNOWN and _ATTACHED_KIND.fullmatch(kind) is None:
        raise msgspec.ValidationError(f"a layer has the impossible name {kind[:80]!r}")
    found = msgspec.convert({**_OWN_FIELDS.get(kind, {}), **facts}, _KNOWN.get(kind, AttachedLayer), strict=False)
    return dict(msgspec.to_builtins(found))


def _check(capture: Capture) -> None:
    """Raise StoreDamaged for values that no capture has."""
    setting, processes, shell = capture.setting, capture.layer(ProcessesLayer), capture.layer(ShellLayer)
    paths = [setting.base, setting.cwd, setting.user.home, *(one for bind in setting.binds for one in _ends(bind))]
    if processes is not None:
        paths += [*processes.overlays, *processes.outside, *processes.masked]
        paths += [f"/{one}" for one in processes.proc_readonly]
    texts = [*paths, *setting.command, setting.shell, *setting.env, *setting.env.values(), setting.user.name]
    limits = [getattr(setting.limits, name) for name in setting.limits.__struct_fields__]
    numbers = [setting.user.uid, setting.user.gid, *setting.user.groups]
    is_possible = (
        is_name(capture.branch)
        and 0 <= capture.created < _LATEST
        and all(path.startswith("/") and ".." not in path.split("/") for path in paths)
        and not any("\0" in text for text in texts)
        and all(limit is None or limit > 0 for limit in limits)
        and all(0 <= number < (1 << 32) - 1 for number in numbers)
        and (shell is None or is_name(shell.file))
    )
    if not is_possible:
        raise refused(f"the record of the capture {capture.id[:12]!r} in it has impossible values", "image-refused")


def _ends(bind: Bind) -> tuple[str, str]:
    return bind.source, bind.target
