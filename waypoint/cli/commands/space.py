"""`waypoint gc` and `waypoint du`: the disk space of a home."""

from waypoint.cli.output import print_json, print_lines, wants_colour, warn, warn_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.facts import DuFacts, GcFacts
from waypoint.model.rendering import age, progress, short, size, table
from waypoint.model.times import parse_age
from waypoint.model.verbs import MAX_SECONDS, Given

_WHY = {
    "name": "named {}",
    "undo": "needed for undo",
    "last": "one of the last (--keep-last)",
    "daily": "the last of its day (--keep-daily)",
}


def gc(given: Given) -> int:
    """Returns the exit status: 1 if something could not be removed."""
    found = Client(given.text("home")).history.gc(
        keep_operations_s=_keep_s(given),
        keep_last=given.number("keep_last"),
        keep_daily=given.number("keep_daily"),
        hot_budget_bytes=given.number("hot_budget"),
        dry_run=given.flag("dry_run"),
        compact=given.flag("compact"),
    )
    if given.flag("json"):
        print_json(found)
    else:
        _print(found)
    warn("not freed", found.stays)
    warn("not removed", found.failed)
    return 1 if found.failed else 0


def _keep_s(given: Given) -> float | None:
    text = given.text("keep_operations")
    seconds = None if text is None else parse_age(text)
    if text is not None and (seconds is None or seconds > MAX_SECONDS):
        next_step = "give a number and s, m, h, d or w, such as 12h or 30d"
        raise UsageProblem("use", f"--keep-operations {text!r}", "it is not an age", next_step)
    return seconds


def _print(found: GcFacts) -> None:
    for one in found.removed:
        processes = f", {size(one['size_bytes'])} of processes" if one["size_bytes"] else ""
        print_lines([f"{short(one['capture'])}  {one['branch']}, {age(one['created'])} old{processes}"])
    for stranger in found.strangers:
        print_lines([f"unknown {stranger.kind:<10}{stranger.path}"])
    for kept in found.kept if found.dry_run else ():
        why = "; ".join(_WHY[reason].format(", ".join(kept["names"])) for reason in kept["why"])
        print_lines([f"{short(kept['capture'])}  {kept['branch']}, {age(kept['created'])} old, is kept: {why}"])
    verb = "would remove" if found.dry_run else "removed"
    captures = f"{len(found.removed)} {'capture' if len(found.removed) == 1 else 'captures'}"
    if found.evicted:
        captures += f", evicted {len(found.evicted)}"
    unknown = f" and {len(found.strangers)} unknown things" if found.strangers else ""
    freed = "" if found.dry_run else f"; freed {size(found.freed_bytes)}, the home now uses {size(found.home_bytes)}"
    print_lines([f"{verb} {captures}{unknown}{freed}"])


def du(given: Given) -> int:
    names = given.texts("names")
    found = Client(given.text("home")).history.du(*names)
    if given.flag("json"):
        print_json(found)
        return 0
    rows = [
        (
            one["kind"],
            short(one["id"]),
            ", ".join(one["names"]) or "-",
            *(size(one[part]) for part in ("files_bytes", "own_files_bytes", "processes_bytes")),
        )
        for one in found.holders
    ]
    if rows:
        headings = ("WHAT", "ID", "NAMES", "FILES", "OWN FILES", "PROCESSES")
        print_lines(table(headings, rows, right=frozenset(headings[3:]), coloured=wants_colour()))
    for one in found.holders:
        warn_lines([f"degraded: {one['kind']} {short(one['id'])}: {item['text']}" for item in one["degraded"]])
    if not names:
        print_lines(["", *(f"{heading:<24}{value}" for heading, value in _whole(found))])
    return 0


def _whole(found: DuFacts) -> list[tuple[str, str]]:
    """Return the home as a whole: headings and values."""
    shared = f"{size(found.unique_bytes)}; {size(found.logical_bytes)} if shared files are counted each time"
    pool = f"{size(found.pool_bytes)}, including {size(found.overhead_bytes)} of free space and btrfs's own tables"
    return [
        ("captures and sessions", shared),
        ("pool of files", pool),
        (
            "copies of captures",
            f"{size(found.copies_bytes)}; above {size(found.hot_budget_bytes)}, stored ones are evicted",
        ),
        ("processes, terminals", size(found.hot_bytes)),
        ("store of images", f"{size(found.stored_bytes)}{progress(found.storing, '; being stored: ')}"),
        ("names.db", size(found.names_bytes)),
        ("logs", size(found.logs_bytes)),
        ("the home", f"{size(found.home_bytes)}; {size(found.free_bytes)} are free on its disk"),
    ]
