"""Disk usage: of captures, live sessions, and the rest of a home."""

import asyncio
import contextlib
import dataclasses
import glob
import os
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path

import msgspec

from waypoint.linux.storage import filesystem
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import Degradation, degradation, facts_of
from waypoint.model.errors import Failed, UnknownName, UsageProblem
from waypoint.model.facts import DuFacts, HolderFacts
from waypoint.model.paths import log_path
from waypoint.model.records import Capture, LiveRow
from waypoint.model.requests import MOST_NAMES, DuQuery
from waypoint.model.session_facts import StrangerFacts
from waypoint.model.stages import Stage
from waypoint.service.home import Home
from waypoint.upper.contract import refusals

MEASURE_S = 30.0  # how long `du` waits for the size of one tree, which may be the work of a hostile session
_Sizes = tuple[int, int, int]
"""The bytes of files, of own files and of processes."""


async def du(home: Home, query: DuQuery) -> DuFacts:
    """The disk usage of the requested captures and sessions, and of the home as a whole. Walks over all files, in a
    thread. Raises UnknownName, UsageProblem for too many names, Failed.
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
        home.pool.settle()
        holders: list[HolderFacts] = []
        with stage(Stage.MEASURE) as under_way:
            for holder in _holders(home, wanted):
                holders.append(holder)
                under_way.report(len(holders))
        hot_bytes, logs_bytes = home.captures.hot_bytes()
        in_pool, pool_bytes = home.pool.unique_bytes(), home.pool.disk_bytes()
        sessions = home.sessions.resources.places.sessions
        own = sum((one["own_files_bytes"] or 0) + (one["processes_bytes"] or 0) for one in holders)
        return DuFacts(
            holders=holders,
            logical_bytes=sum((one["files_bytes"] or 0) + (one["processes_bytes"] or 0) for one in holders),
            unique_bytes=in_pool + hot_bytes if wanted is None else own,
            stored_bytes=_stored_bytes(home),
            hot_bytes=hot_bytes,
            pool_bytes=pool_bytes,
            overhead_bytes=max(0, pool_bytes - in_pool),
            names_bytes=_files(f"{escape(str(home.path))}/names.db*"),
            logs_bytes=logs_bytes + _files(f"{escape(log_path(str(home.path)))}*"),
            rings_bytes=_files(f"{escape(str(sessions))}/*/ring"),
            home_bytes=home_bytes(home),
            free_bytes=filesystem.free_bytes(home.path),
            copies_bytes=home.captures.copies_bytes(MEASURE_S),
            hot_budget_bytes=home.hot_budget_bytes,
        )


def _stored_bytes(home: Home) -> int:
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


def _holders(home: Home, wanted: list[str] | None) -> Iterator[HolderFacts]:
    rows = {row.branch: row for row in home.names.live()}
    if wanted is not None:
        for name in wanted:
            ref = home.names.ref(name)
            if ref is not None and ref.kind == "branch" and name in rows:
                yield _of_session(home, rows[name])
            else:
                capture = home.names.resolve(name)
                yield _of_capture(home, capture, home.names.names_of(capture.id))
        return
    removed = home.names.removed()
    captures = [capture for capture in reversed(home.names.captures()) if capture.id not in removed]
    names = home.names.names_of_all([capture.id for capture in captures])
    for capture in captures:
        try:
            yield _of_capture(home, capture, names[capture.id])
        except UnknownName:  # removed meanwhile
            continue
    for row in rows.values():
        try:
            yield _of_session(home, row)
        except UnknownName:  # ended meanwhile
            continue
    yield from map(_of_stranger, home.present_strangers())


def _of_capture(home: Home, capture: Capture, names: list[str]) -> HolderFacts:
    def measure() -> _Sizes:
        found = home.captures.usage(capture, MEASURE_S)
        return found.files.total_bytes, found.files.own_bytes, found.hot_bytes

    return _holder("capture", capture.id, names, measure)


def _of_session(home: Home, row: LiveRow) -> HolderFacts:
    def measure() -> _Sizes:
        found = home.pool.shares(row.tree, MEASURE_S)
        return found.total_bytes, found.own_bytes, 0

    return _holder("session", row.session, [row.branch], measure)


def _of_stranger(stranger: StrangerFacts) -> HolderFacts:
    """Return the size of a stranger. It includes what its tree shares with other trees."""

    def measure() -> _Sizes:
        size = 0
        if stranger.kind in ("files", "capture") and Path(stranger.path).exists():
            size = filesystem.used_bytes(stranger.path)
        return (size, size, 0) if stranger.kind == "files" else (0, 0, size if stranger.kind == "capture" else 0)

    return _holder(f"unknown {stranger.kind}", stranger.id, [], measure)


def _holder(kind: str, ident: str, names: list[str], measure: Callable[[], _Sizes]) -> HolderFacts:
    """Call `measure`. If it fails, the sizes are None, with the condition `not-measured`."""
    sizes: _Sizes | tuple[None, None, None] = (None, None, None)
    degraded: list[Degradation] = []
    try:
        sizes = measure()
    except Failed as error:
        degraded = [degradation("not-measured", detail=error.said)]
    return {
        "kind": kind,
        "id": ident,
        "names": names,
        "files_bytes": sizes[0],
        "own_files_bytes": sizes[1],
        "processes_bytes": sizes[2],
        "degraded": facts_of(degraded),
    }
