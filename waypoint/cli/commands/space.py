"""`waypoint gc` and `waypoint du`: the disk space of a home."""

from collections.abc import Iterator

from waypoint.cli.output import print_json, print_lines, wants_colour, warn, warn_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.facts import DuFacts, GcFacts, HeldBy, HeldFacts
from waypoint.model.rendering import age, full_lines, progress, short, size, table
from waypoint.model.times import parse_age
from waypoint.model.verbs import MAX_SECONDS, Given

_TOLD_BYTES = 16 << 20
"""Less space is not worth a line."""
_HELD: dict[HeldBy, tuple[str, str]] = {
    "names": (
        "{} with a name",
        "'waypoint rm NAME' frees that; 'waypoint evict NAME' frees what is outside of the store",
    ),
    "policy": ("{} that --keep-last or --keep-daily keeps", "lower numbers free that"),
    "undo": ("{} for undo", "'waypoint gc --keep-operations AGE' or '--undo-budget SIZE' frees that"),
    "files": ("the files of captures and sessions", "'waypoint du' lists them"),
}
_WHY = {
    "name": "named {}",
    "undo": "needed for undo",
    "last": "one of the last (--keep-last)",
    "daily": "the last of its day (--keep-daily)",
    "base": "a base",
}


def gc(given: Given) -> int:
    """Returns the exit status: 1 if something could not be removed."""
    found = Client(given.text("home")).history.gc(
        keep_operations_s=_keep_s(given),
        keep_last=given.number("keep_last"),
        keep_daily=given.number("keep_daily"),
        hot_budget_bytes=given.number("hot_budget"),
        undo_budget_bytes=given.number("undo_budget"),
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
    print_lines([f"held: {text}" for text in _held(found.held)])


def _held(held: list[HeldFacts]) -> Iterator[str]:
    """What holds much space, and how to free it."""
    for one in held:
        in_store = one["stored_bytes"]
        if one["copies_bytes"] + (in_store or 0) < _TOLD_BYTES:
            continue
        what, how = _HELD[one["by"]]
        captures = f"{one['captures']} {'capture' if one['captures'] == 1 else 'captures'}"
        stored = (
            f", {'an unknown size' if in_store is None else size(in_store)} in the store" if one["captures"] else ""
        )
        yield f"{size(one['copies_bytes'])}{stored}: {what.format(captures)}; {how}"


def du(given: Given) -> int:
    names = given.texts("names")
    client = Client(given.text("home"))
    found = client.history.du(*names)
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
    warn("nearly full", full_lines(client.status()))
    if not names:
        print_lines(["", *(f"{heading:<24}{value}" for heading, value in _whole(found))])
        print_lines([f"held: {text}" for text in _held(found.held)])
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
        ("captures for undo", f"at most {size(found.undo_budget_bytes)}; above, the oldest operations become final"),
        ("processes, terminals", size(found.hot_bytes)),
        ("of these in memory", f"{size(found.memory_bytes)}, of {size(found.hot_memory_bytes)}; soon on the disk"),
        ("store of images", f"{size(found.stored_bytes)}{progress(found.storing, '; being stored: ')}"),
        ("names.db", size(found.names_bytes)),
        ("logs", size(found.logs_bytes)),
        ("the home", f"{size(found.home_bytes)}; {size(found.free_bytes)} are free on its disk"),
    ]
