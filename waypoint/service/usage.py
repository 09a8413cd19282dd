"""Disk usage: of captures, live sessions, and the rest of a home."""

import asyncio
import contextlib
import dataclasses
import glob
import os
from glob import escape
from pathlib import Path

import msgspec

from waypoint.capture.captures import Usage
from waypoint.linux.storage import filesystem
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import degradation, facts_of
from waypoint.model.errors import Failed, UsageProblem
from waypoint.model.facts import DuFacts, HolderFacts
from waypoint.model.paths import log_path
from waypoint.model.records import Capture, LiveRow
from waypoint.model.requests import MOST_NAMES, DuQuery
from waypoint.model.session_facts import StrangerFacts
from waypoint.model.stages import Stage
from waypoint.service.held_space import held
from waypoint.service.home import Home
from waypoint.upper.contract import PoolUsage, Shares, refusals

MEASURE_S = 30.0  # how long `du` waits for the sizes of trees, which may be the work of a hostile session
_Named = tuple[Capture, list[str]]
"""A capture, and its names."""


async def du(home: Home, query: DuQuery) -> DuFacts:
    """The disk usage of the requested captures and sessions, and of the home as a whole. Blocks, in a thread.
    Raises UnknownName, UsageProblem for too many names, Failed.
    """
    wanted = None if query.names is None else list(dict.fromkeys(query.names.split()))
    if wanted is not None and len(wanted) > MOST_NAMES:
        said = f"at most {MOST_NAMES} names are measured at once"
        raise UsageProblem("measure", f"{len(wanted)} names", said, "give fewer names, or none to measure everything")
    found = await asyncio.to_thread(_measure, home, wanted)
    storing = home.storing.progress()
    return dataclasses.replace(found, storing=msgspec.to_builtins(storing) if storing is not None else None)


def _measure(home: Home, wanted: list[str] | None) -> DuFacts:
    with refusals("measure", str(home.path)):
        captures, rows = _all(home) if wanted is None else _named(home, wanted)
        with stage(Stage.MEASURE):
            found = home.captures.usage([capture for capture, _ in captures], MEASURE_S)
        holders = [one for capture, names in captures if (one := _of_capture(home, capture, names, found)) is not None]
        holders += [one for row in rows if (one := _of_session(row, found.pool)) is not None]
        if wanted is None:
            holders += map(_of_stranger, home.present_strangers())
        memory = home.captures.memory()
        logs_bytes, in_pool, pool_bytes = home.captures.logs_bytes(), found.pool.unique_bytes, home.pool.disk_bytes()
        sessions = home.sessions.resources.places.sessions
        own = sum((one["own_files_bytes"] or 0) + (one["processes_bytes"] or 0) for one in holders)
        return DuFacts(
            holders=holders,
            logical_bytes=sum((one["files_bytes"] or 0) + (one["processes_bytes"] or 0) for one in holders),
            unique_bytes=in_pool + found.hot_bytes if wanted is None else own,
            stored_bytes=stored_bytes(home),
            hot_bytes=found.hot_bytes,
            pool_bytes=pool_bytes,
            overhead_bytes=max(0, pool_bytes - in_pool),
            names_bytes=_files(f"{escape(str(home.path))}/names.db*"),
            logs_bytes=logs_bytes + _files(f"{escape(log_path(str(home.path)))}*"),
            rings_bytes=_files(f"{escape(str(sessions))}/*/ring"),
            home_bytes=home_bytes(home),
            free_bytes=filesystem.free_bytes(home.path),
            copies_bytes=found.copies_bytes(),
            hot_budget_bytes=home.keeping.hot_bytes,
            undo_budget_bytes=home.keeping.undo_bytes,
            memory_bytes=memory.used_bytes,
            hot_memory_bytes=0 if memory.why_not else memory.size_bytes,
            held=held(home, home.keeping.survey(home.names)) if wanted is None else [],
        )


def stored_bytes(home: Home) -> int:
    """The bytes on disk of the store of images."""
    store = escape(str(home.captures.images.store))
    return sum(_files(f"{store}/{names}") for names in ("packs/*", "images/*", "index.db*"))


def home_bytes(home: Home) -> int:
    """The bytes of the disk that the home uses. A pool file counts as a file."""
    return filesystem.used_bytes(home.path)


def _files(pattern: str) -> int:
    """The bytes on disk of the files that match a pattern."""
    total = 0
    for path in glob.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # its session has ended meanwhile
            total += os.stat(path).st_blocks * 512
    return total


def _named(home: Home, wanted: list[str]) -> tuple[list[_Named], list[LiveRow]]:
    rows, captures, live = {row.branch: row for row in home.names.live()}, list[_Named](), list[LiveRow]()
    for name in wanted:
        ref = home.names.ref(name)
        if ref is not None and ref.kind == "branch" and name in rows:
            live.append(rows[name])
        else:
            capture = home.names.resolve(name)
            captures.append((capture, home.names.names_of(capture.id)))
    return captures, live


def _all(home: Home) -> tuple[list[_Named], list[LiveRow]]:
    removed = home.names.removed()
    captures = [capture for capture in reversed(home.names.captures()) if capture.id not in removed]
    names = home.names.names_with_bases([capture.id for capture in captures])
    return [(capture, names[capture.id]) for capture in captures], home.names.live()


def _of_capture(home: Home, capture: Capture, names: list[str], found: Usage) -> HolderFacts | None:
    """None if the capture has been removed meanwhile."""
    if home.captures.is_evicted(capture):
        return _holder("capture", capture.id, names, Shares(0, 0), 0)
    files = found.files_of(capture)
    return _holder("capture", capture.id, names, files, found.hot.get(capture.id, 0)) if files is not None else None


def _of_session(row: LiveRow, found: PoolUsage) -> HolderFacts | None:
    """None if the session has ended meanwhile."""
    files = found.of(row.tree)
    return _holder("session", row.session, [row.branch], files, 0) if files is not None else None


def _of_stranger(stranger: StrangerFacts) -> HolderFacts:
    """Return the size of a stranger. It includes what its tree shares with other trees."""
    size = 0
    if stranger.kind in ("files", "capture") and Path(stranger.path).exists():
        size = filesystem.used_bytes(stranger.path)
    files, processes = (size, 0) if stranger.kind == "files" else (0, size)
    return _holder(f"unknown {stranger.kind}", stranger.id, [], Shares(files, files), processes)


def _holder(kind: str, ident: str, names: list[str], files: Shares | Failed, processes_bytes: int) -> HolderFacts:
    """`files`: Failed if they could not be measured: then the sizes are None, with the condition `not-measured`."""
    failed = files if isinstance(files, Failed) else None
    return {
        "kind": kind,
        "id": ident,
        "names": names,
        "files_bytes": None if isinstance(files, Failed) else files.total_bytes,
        "own_files_bytes": None if isinstance(files, Failed) else files.own_bytes,
        "processes_bytes": None if failed else processes_bytes,
        "degraded": facts_of([degradation("not-measured", detail=failed.said)] if failed else []),
    }
