"""The differences between two captures, or a capture and the machine: files, programs, variables of the shell."""

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from waypoint.capture.captures import HeldCapture
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import pauses
from waypoint.linux.tasks.stages import stage
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged, UsageProblem, of_machine
from waypoint.model.facts import ChangeFacts
from waypoint.model.records import ProgramsLayer, Setting, User
from waypoint.model.requests import DiffRequest
from waypoint.model.stages import Stage
from waypoint.session.birth import rights
from waypoint.session.ignored import find_ignored
from waypoint.session.live.resources import Resources
from waypoint.session.views import common_setting, mounted_view, scope_of
from waypoint.terminal.shell import dump
from waypoint.upper import layout, patches
from waypoint.upper.changes import changed_targets
from waypoint.upper.comparing import Change, changes, contents
from waypoint.upper.views import Pairs, Views, candidates, find_touched

_MOST_PATCHES = 256 << 20
"""Bytes of all patches together, which are held in memory."""
_BETWEEN_PAUSES = 32  # changes that are compared before the thread waits for a frozen session
NO_LINES = patches.Lines(None, None)
_VOLATILE = frozenset((b"_", b"OLDPWD", b"WAYPOINT_BRANCH"))
_WITH_CONTENT = (stat.S_IFREG, stat.S_IFLNK)
TYPES: Mapping[int, str] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@stage(Stage.COMPARE)
def compare(
    resources: Resources, before: HeldCapture | None, after: HeldCapture | None, request: DiffRequest
) -> list[ChangeFacts]:
    """What differs from `before` to `after`, of which one may be None, the machine. `request.one` is only for errors.
    Reads files with the rights of the caller. Blocks. Raises UsageProblem, Failed.
    """
    setting = common_setting(request.one, [held.capture.setting for held in (before, after) if held is not None])
    trees = [held.files if held is not None else "" for held in (after, before)]
    found: list[ChangeFacts] = []
    patched_bytes = 0
    try:
        resources.places.follow_host()
        for target in sorted({one for tree in trees if tree for one in changed_targets(tree)}):
            for facts in _files_in(resources, setting, target, trees, request):
                found.append(facts)
                patched_bytes += len(facts.patch or "")
                if patched_bytes > _MOST_PATCHES:
                    said = f"the patches have more than {_MOST_PATCHES >> 20} MiB"
                    raise UsageProblem("compare", request.one, said, "name fewer files: waypoint diff A B -- PATH...")
    except OSError as error:
        raise _cannot_compare(request.one, error) from error
    if before is not None and after is not None and not request.paths:
        found += _programs(before, after)
        found += _variables(before, after)
    return found


def _cannot_compare(on: str, error: OSError) -> Failed:
    where = f": {os.fsdecode(error.filename)}" if error.filename else ""
    said = f"{error.strerror or error}{where}"
    next_step = "name fewer files: waypoint diff NAME -- PATH..."
    return Failed("read the changes of", on, said, next_step, code=of_machine(error.errno))


def _files_in(
    resources: Resources, setting: Setting, target: str, trees: list[str], request: DiffRequest
) -> Iterator[ChangeFacts]:
    scope = scope_of(resources.places, setting, target, request.paths)
    if scope is None:
        return
    touched = find_touched(trees[0], trees[1], target) if all(trees) else None
    uppers = [layout.upper_of(tree, target) if tree else "" for tree in trees]
    with contextlib.ExitStack() as held:
        mounted = [held.enter_context(mounted_view(resources.places, setting.base, target, one)) for one in uppers]
        views, sealed = (
            [held.enter_context(open_folder(place)) for place in places]
            for places in ([one.path for one in mounted], [one.upper for one in mounted])
        )
        pairs = held.enter_context(Pairs(Views(*views), (sealed[0], sealed[1])))
        differing = candidates(uppers[0], uppers[1], scope.concerns, touched)
        held.enter_context(rights.as_caller(resources))
        found: Iterable[Change] = changes(differing, pairs, scope)
        if request.ignore:
            found = _without_ignored(list(found), views[0], target, request, rights.restricted_caller(resources))
        for number, change in enumerate(found):
            if number % _BETWEEN_PAUSES == 0:
                pauses.wait()
            yield _facts(change, target, pairs, request)


def _without_ignored(
    found: list[Change], view: int, target: str, request: DiffRequest, user: User | None
) -> Iterator[Change]:
    are_folders = {
        change.path: any(facts is not None and stat.S_ISDIR(facts.st_mode) for facts in change[2:4]) for change in found
    }
    ignored = find_ignored(request.one, view, target, are_folders, user)
    return (change for change in found if change.path not in ignored)


def _facts(change: Change, target: str, pairs: Pairs, request: DiffRequest) -> ChangeFacts:
    lines = NO_LINES
    if request.lines or request.patch:
        old, new = _sized(change.present), _sized(change.wanted)
        if old is not None or new is not None:
            lines = _lines(change, target, pairs, request)
    return file_facts(change, target, lines, with_patch=request.patch)


def file_facts(
    change: Change, target: str, lines: patches.Lines = NO_LINES, *, with_patch: bool = False
) -> ChangeFacts:
    """The facts about a change in the overlay at `target`."""
    old, new = change.present, change.wanted
    facts = new or old
    assert facts is not None
    return ChangeFacts(
        kind="file",
        change=change.how,
        name=as_utf8(shown(target, change.path)),
        type=TYPES[stat.S_IFMT(facts.st_mode)],
        old_size=_size(old),
        new_size=_size(new),
        insertions=lines.insertions,
        deletions=lines.deletions,
        source=as_utf8(shown(target, change.source)) if change.source else None,
        detail=_detail(old, new),
        patch=lines.patch if with_patch else None,
    )


def shown(target: str, path: str) -> str:
    """The path in the session of `path`, which is relative to the overlay at `target`."""
    return f"{target.rstrip('/')}/{path}"


def as_utf8(path: str) -> str:
    """A path as JSON can have it: each byte that is not UTF-8 becomes `\\xNN`."""
    return path if path.isascii() else os.fsencode(path).decode(errors="backslashreplace")


def _sized(facts: os.stat_result | None) -> os.stat_result | None:
    """The facts of an entry with content: of a file or link."""
    return facts if facts is not None and stat.S_IFMT(facts.st_mode) in _WITH_CONTENT else None


def _lines(change: Change, target: str, pairs: Pairs, request: DiffRequest) -> patches.Lines:
    before, after = _sized(change.present), _sized(change.wanted)
    read: tuple[bytes | None, bytes | None] = (None, None)
    if all(facts is None or facts.st_size <= patches.MOST_BYTES for facts in (before, after)):
        with contextlib.suppress(PermissionError):  # it is shown like a binary file
            read = contents(change, pairs, patches.MOST_BYTES)
    old = patches.File(before.st_mode, read[0]) if before is not None else None
    new = patches.File(after.st_mode, read[1]) if after is not None else None
    path = ""
    if request.patch:
        path = shown(target, change.path).removeprefix(request.root.rstrip("/")).lstrip("/")
    return patches.compare(path, old, new, with_patch=request.patch)


def _size(facts: os.stat_result | None) -> int | None:
    return facts.st_size if facts is not None and stat.S_ISREG(facts.st_mode) else None


def _detail(old: os.stat_result | None, new: os.stat_result | None) -> str:
    """The changes of mode and owner, in words."""
    if old is None or new is None:
        return ""
    modes = [f"{stat.S_IMODE(facts.st_mode):o}" for facts in (old, new)]
    owners = [f"{facts.st_uid}:{facts.st_gid}" for facts in (old, new)]
    words = [f"mode {modes[0]} to {modes[1]}"] if modes[0] != modes[1] else []
    words += [f"owner {owners[0]} to {owners[1]}"] if owners[0] != owners[1] else []
    return ", ".join(words)


def _programs(before: HeldCapture, after: HeldCapture) -> Iterator[ChangeFacts]:
    """The command lines of programs that run in one of the captures only, if both are known."""
    layers = [held.capture.layer(ProgramsLayer) for held in (before, after)]
    if layers[0] is None or layers[1] is None:
        return
    old, new = (
        Counter([*layer.programs, *(one.subject for one in layer.lost)]) for layer in layers if layer is not None
    )
    for how, counted in (("removed", old - new), ("added", new - old)):
        for line in sorted(counted.elements()):
            yield _named("process", how, line)  # type: ignore[arg-type]


def _variables(before: HeldCapture, after: HeldCapture) -> Iterator[ChangeFacts]:
    """The names of exported variables that differ. Their values may be secret."""
    found: list[dict[bytes, dump.Entry]] = []
    for held in (before, after):
        try:
            kept = held.shell_state()
            state = dump.parse(kept.data, kept.layer.kind)
        except (CannotCapture, StoreDamaged, ValueError):  # unknown, so nothing can be said about it
            return
        is_exported = b"x" if state.kind == "bash" else b"export"
        found.append(
            {
                name: entry
                for name, entry in state.variables.items()
                if is_exported in entry.attributes and name not in _VOLATILE
            }
        )
    old, new = found
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            how = "added" if name not in old else "removed" if name not in new else "changed"
            yield _named("variable", how, name.decode(errors="backslashreplace"))  # type: ignore[arg-type]


def _named(kind: Literal["process", "variable"], how: Literal["added", "removed", "changed"], name: str) -> ChangeFacts:
    return ChangeFacts(kind=kind, change=how, name=as_utf8(name))
