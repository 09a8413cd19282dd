"""Compares the records of a home with the machine: nothing is half made, and nothing is left over."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.homes import Home
from tests.processes_now import name_of
from tests.waiting import wait_until
from waypoint.client import Client
from waypoint.linux.tasks import cgroups
from waypoint.model.ids import is_id

SETTLE_S = 15.0  # a CRIU that hangs is killed after 7 s, and so is the CRIU of the second try
_TABLES = {
    "live": "SELECT ready, record FROM live",
    "captures": "SELECT NOT ifnull(removed, 0), record FROM captures LEFT JOIN standings ON id = capture",
    "stored": "SELECT ifnull(durable, 0), record FROM captures LEFT JOIN standings ON id = capture",
    "refs": "SELECT name, record FROM refs",
}


def check(home: Home, *, expected: str | None = None) -> None:
    """Raise AssertionError with all differences that remain for SETTLE_S, except those that contain `expected`:
    sessions may be ending at the moment, and the daemon counts the changes of captures in views.
    """
    found: list[str] = []

    def is_consistent() -> bool:
        found[:] = [one for one in differences(home) if expected is None or expected not in one]
        return not found

    with contextlib.suppress(AssertionError):
        wait_until(is_consistent, "record and machine agree", SETTLE_S)
    assert not found, "\n".join([*found, *(home.path / "daemon.log").read_text().splitlines()[-20:]])


def differences(home: Home) -> list[str]:
    """Return a sentence for each object that is recorded but does not exist, or exists but is not recorded. Starts a
    daemon if none runs.
    """
    client = Client(home.path)
    pid = client.status().pid
    tables = {name: rows(home, query) for name, query in _TABLES.items()}
    live = [row for _ready, row in tables["live"]]
    standing = {row["session"] for row in live if row.get("stands_for")}
    recorded = {row["id"] for _, row in tables["captures"]}
    captures = {row["id"]: row for is_there, row in tables["captures"] if is_there}
    sessions = {row["session"] for row in live}
    group = group_of(home)
    half_made = [row for ready, row in tables["live"] if not ready and row["session"] not in standing]
    found = [f"half-made on record: {row['branch']}" for row in half_made]
    pool, hot = Path(f"/proc/{pid}/root{home.path}/pool"), home.path / "hot"
    in_store = {row["id"] for is_stored, row in tables["stored"] if is_stored}
    copied = {
        key: row
        for key, row in captures.items()
        if key not in in_store or (pool / row["layers"]["files"]["tree"]).exists() or (hot / key).exists()
    }
    trees = {row["tree"] for row in live} | {row["layers"]["files"]["tree"] for row in copied.values()}
    found += _compare("tree", trees, {path.name for path in pool.iterdir()})
    folders = {key for key, row in copied.items() if "terminal" in row["layers"]}
    found += _compare("hot folder", folders, {path.name for path in hot.iterdir()})
    found += _compare("cgroup", sessions, {path.name for path in group.iterdir() if is_id(path.name)})
    found += _compare("runtime folder", sessions, {path.name for path in (home.runtime / "sessions").iterdir()})
    found += _compare("group of a CRIU", set(), {path.name for path in group.glob("dumps/*/") if is_id(path.name)})
    listed = {row.id or "" for row in client.sessions()}
    found += _compare("session in ps", sessions - standing, listed)
    found += [f"{path} is left" for path in home.runtime.glob("view-*")]
    found += [f"{name} leads nowhere" for name, ref in tables["refs"] if ref["capture"] not in {None, *captures}]
    found += [
        f"{key[:12]} has an unknown parent" for key, row in captures.items() if not set(row["parents"]) <= recorded
    ]
    for row in (row for row in live if row["session"] not in standing):
        found += _about_session(group / row["session"], row["branch"], {name for name, _ in tables["refs"]})
    return found + [f"a CRIU still runs: {one}" for one in criu_pids(home)]


def group_of(home: Home) -> Path:
    """The home's cgroup."""
    root = Path(cgroups.find_hierarchies().unified)
    scope = root / f"system.slice/waypoint-{home.id}.scope"
    return scope if scope.exists() else root / "waypoint" / home.id


def criu_pids(home: Home) -> list[int]:
    """The pids of the home's CRIU processes: a dumping CRIU has its own cgroup, a restoring one its session's."""
    return [pid for pid in [*_members(group_of(home), "*"), *dumping_pids(home)] if name_of(pid) == "criu"]


def dumping_pids(home: Home) -> list[int]:
    """The pids of the CRIU processes that dump sessions of the home, and of their children."""
    return _members(group_of(home), "dumps/[!t]*")  # not those of templates, which wait for restores


def _members(group: Path, below: str) -> list[int]:
    found: list[int] = []
    for path in group.glob(f"{below}/cgroup.procs"):
        with contextlib.suppress(OSError):  # the group is gone meanwhile
            found += map(int, path.read_text().split())
    return found


def _about_session(group: Path, branch: str, names: set[str]) -> list[str]:
    found = [] if branch in names else [f"{branch} is live and no branch"]
    with contextlib.suppress(OSError):  # the group is missing, which `differences` reports
        if "frozen 1" in (group / "cgroup.events").read_text():
            found.append(f"{branch} is frozen")
        if not (group / "cgroup.procs").read_text():
            found.append(f"{branch} has no process")
    return found


def rows(home: Home, query: str) -> list[tuple[Any, Any]]:
    db = sqlite3.connect(f"file:{home.path}/names.db?mode=ro", uri=True)
    try:
        return [(first, json.loads(record)) for first, record in db.execute(query)]
    finally:
        db.close()


def _compare(kind: str, recorded: set[str], there: set[str]) -> list[str]:
    there = {name for name in there if not name.startswith(".")}
    missing = [f"{kind} {name[:12]} is on record and not there" for name in sorted(recorded - there)]
    return missing + [f"{kind} {name[:12]} is there and not on record" for name in sorted(there - recorded)]
