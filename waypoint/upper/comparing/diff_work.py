"""What the program for differences does: from an order on stdin to lines of JSON on stdout."""

import contextlib
import functools
import gc
import os
import stat
import sys
from collections.abc import Iterator

from waypoint.linux.storage import access
from waypoint.linux.storage.access import Looking
from waypoint.model import plainjson
from waypoint.model.errors import Failed, UsageProblem, bug_of, trace_of
from waypoint.upper.comparing.differing import EntryChange, differing
from waypoint.upper.comparing.patching import NoPatch, patch_of
from waypoint.upper.comparing.presence import is_nowhere
from waypoint.upper.comparing.stack import opened_pairs

_AT_ONCE = 256
_MOST_TEXT = 1 << 18
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


def main() -> int:
    """Returns the exit status. The order: `one`, `other`: paths of upper trees, "" for the base; `base`, `hidden`,
    `skipped`: as of `opened_pairs`; `only`: as of `differing`; `patch`; `user`: its number, group and groups, or null.
    """
    gc.disable()  # what is made is gone in a moment, without cycles
    order = plainjson.decode_object(sys.stdin.buffer.readline())
    try:
        _work(order)
    except UsageProblem as error:
        _put({"kind": "error", "error": error.to_json()})
    except OSError as error:
        where = f" {os.fsdecode(error.filename)}" if error.filename else ""
        said = f"{error.strerror or error}{where}"
        failed = Failed("compare", "the files", said, "name fewer of them: waypoint diff A B -- PATH")
        _put({"kind": "error", "error": failed.to_json()})
    except Exception as error:  # who asked has its words; the log, to which stderr leads, where it comes from
        print(trace_of(error, "a diff"), file=sys.stderr)
        _put({"kind": "error", "error": bug_of(error, "compare", "the files").to_json()})
    return 0


def _work(order: dict[str, object]) -> None:
    one, other, base = (str(order[name]) for name in ("one", "other", "base"))
    hidden, skipped, only = (_texts(order[name]) for name in ("hidden", "skipped", "only"))
    looking = _looking(order["user"])
    for path in only if order["user"] is None else ():  # others may not know what is in a folder of the machine
        if is_nowhere(path, filter(None, (one, other)), base, skipped):
            said = "there is nothing that could be compared, neither on the one side nor on the other"
            raise UsageProblem("compare", path, said, "name what 'waypoint diff' tells, absolute or from this folder")
    count = 0
    with opened_pairs(one, other, base, hidden, skipped) as pairs:
        found = (change for pair in pairs for change in differing(*pair, only, looking))
        for piece in _pieces(found, looking, with_patch=order["patch"] is True):
            count += len(piece)
            _put({"kind": "files", "changes": piece})
    _put({"kind": "end", "files": count})


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _looking(user: object) -> Looking:
    match user:
        case [int(uid), int(gid), [*groups]]:
            return functools.partial(access.as_user, uid, gid, [int(str(group)) for group in groups])
        case _:
            return contextlib.nullcontext


def _put(line: dict[str, object]) -> None:
    sys.stdout.buffer.write(plainjson.encode(line).encode() + b"\n")
    sys.stdout.buffer.flush()


def _pieces(found: Iterator[EntryChange], looking: Looking, *, with_patch: bool) -> Iterator[list[dict[str, object]]]:
    piece: list[dict[str, object]] = []
    size = 0
    for change in found:
        piece.append(_facts(change))
        if with_patch:
            try:
                text: str | None = patch_of(change, looking)
                why = ""
            except NoPatch as error:
                text, why = None, str(error)
            piece[-1] |= {"patch": text, "no_patch": why}
            size += len(text or "")
        if len(piece) >= _AT_ONCE or size >= _MOST_TEXT:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _facts(change: EntryChange) -> dict[str, object]:
    was, now = change.was, change.now
    facts = now or was
    return {
        "path": os.fsdecode(change.path),
        "change": change.how,
        "type": _TYPES[stat.S_IFMT(facts.st_mode)] if facts is not None else "",
        "old_size": _size(was),
        "new_size": _size(now),
        "source": os.fsdecode(change.source) or None,
        "whole": change.is_whole or (now is None and was is not None and stat.S_ISDIR(was.st_mode)),
    }


def _size(facts: os.stat_result | None) -> int | None:
    return facts.st_size if facts is not None and stat.S_ISREG(facts.st_mode) else None
