"""Facts as lines of text for people: the same outside a session (cli) and inside one (service/inside). No I/O.

`coloured`: whether the text is for a terminal that shows colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from waypoint.model.errors import cleaned, one_line
from waypoint.model.outcomes import SHORT, proof_lines, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import CaptureFacts, ChangeFacts, FileFacts, FoundFacts, OperationFacts, PointFacts
    from waypoint.model.session_facts import (
        BelowFacts,
        ChangeCountFacts,
        LimitFacts,
        PortFacts,
        SessionFacts,
        StatusFacts,
        StopFacts,
        SurveyedProcess,
    )

_COLOURS = {
    "ok": "green",
    "live": "green",
    "degraded": "yellow",
    "ended": "bright_black",
    "parked": "bright_black",
    "missing": "red",
    "lost": "red",
    "unreachable": "red",
}
_GAP = "  "
FULL = 0.8
"""The part of a disk or a limit that is used when a warning is due."""
# Parameters of the escape sequence SGR: ECMA-48, 8.3.117.
_SGR = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bright_black": 90}
_ONLY_CRIU = (
    "A checkpoint makes the same checks. Only CRIU finds a few further reasons, such as unread messages in sockets."
)
_LEAST_WIDTH, _LEAST_MESSAGE = 16, 8  # of a wrapped column; of a shortened message in `log`
_OPERATION_LENGTH = 240  # of a cell of `op log`
_LABEL_LENGTH, _COMMANDS_SHOWN = 60, 3  # of a point
_WIDTH = 13  # columns for the headings of `waypoint show`


_LAYER_FACTS = {
    "count": "{} processes",
    "end": "{} bytes of output so far",
    "frozen_ms": "frozen for {} ms",
    "ids": "user ids {}",
    "source": "copy of {}",
}


# --- words and tables


def styled(text: str, *, coloured: bool, fg: str = "", bold: bool = False) -> str:
    codes = [*([_SGR[fg]] if fg else []), *([1] if bold else [])]
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if coloured and codes else text


def state(word: str, *, coloured: bool) -> str:
    """`word`, the name of a state, in the colour of this state."""
    return styled(word, coloured=coloured, fg=_COLOURS.get(word.strip(), ""))


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[str] = frozenset(),
    wrapped: frozenset[str] = frozenset(),
    width: int | None = None,
    coloured: bool = False,
) -> list[str]:
    """Return the lines of a table whose columns are as wide as their longest cell. Columns in `right` are aligned to
    the right. If the table is wider than `width`, the cells of the columns in `wrapped` take several lines.
    """
    rows = [[cleaned(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        narrow = _narrowed(dict(zip(headings, widths, strict=True)), wrapped, width)
        rows = [line for row in rows for line in _wrapped_row(row, [narrow.get(heading) for heading in headings])]
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = []
    for number, row in enumerate([headings, *rows]):
        cells = []
        for heading, cell, own in zip(headings, row, widths, strict=True):
            padded = cell.rjust(own) if heading in right else cell.ljust(own)
            is_heading = number == 0
            cells.append(
                styled(padded, coloured=coloured, bold=True) if is_heading else state(padded, coloured=coloured)
            )
        lines.append(_GAP.join(cells).rstrip())
    return lines


def _narrowed(widths: Mapping[str, int], wrapped: frozenset[str], width: int) -> dict[str, int]:
    """Return the widths of the columns in `wrapped` with which the table fits `width`, each at least _LEAST_WIDTH."""
    left = width - sum(len(_GAP) + own for heading, own in widths.items() if heading not in wrapped) + len(_GAP)
    found: dict[str, int] = {}
    for own, heading in sorted((widths[heading], heading) for heading in wrapped):
        share = left // (len(wrapped) - len(found)) - len(_GAP)
        found[heading] = min(own, max(share, _LEAST_WIDTH))
        left -= found[heading] + len(_GAP)
    return found


def _wrapped_row(row: Sequence[str], widths: Sequence[int | None]) -> list[list[str]]:
    """Return the lines of a row whose cells are wrapped to `widths` (None: not wrapped). Wider words are divided."""
    import textwrap

    cells = []
    for cell, width in zip(row, widths, strict=True):
        words = cell if width is None else " ".join(piece for word in cell.split() for piece in _pieces(word, width))
        cells.append([cell] if width is None else textwrap.wrap(words, width, break_on_hyphens=False) or [""])
    return [[cell[n] if n < len(cell) else "" for cell in cells] for n in range(max(map(len, cells)))]


def _pieces(word: str, width: int) -> Iterator[str]:
    """The pieces of a word, each at most `width` long, that end with a `-` or `/` if possible."""
    while len(word) > width:
        end = max(word.rfind("-", 0, width), word.rfind("/", 0, width)) + 1 or width
        yield word[:end]
        word = word[end:]
    yield word


def size(count: int | None) -> str:
    """Return a number of bytes in the largest unit of which there is at least one: 17 B, 1.4 MiB, 214 GiB. None:
    "-".
    """
    if count is None:
        return "-"
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1023.95 or unit == "TiB":
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    raise AssertionError("unreachable")


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units: 4s, 3m07s, 2h05m, 12d03h. None: "-"."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 86400}d{whole // 3600 % 24:02}h"


def progress(found: object, before: str = "") -> str:
    """Return the progress of a job, in JSON, as text: `3 of 8 items, 1.4 MiB`; "" if nothing is done. `before`: what
    the text begins with.
    """
    words = []
    match found:
        case {"items": int(items), "items_total": total} if items:
            words.append(f"{items} items" if total is None else f"{items} of {total} items")
    match found:
        case {"bytes": int(done), "bytes_total": int(total)}:
            words.append(f"{size(done)} of {size(total)}")
        case {"bytes": int(done)} if done:
            words.append(size(done))
    return before + ", ".join(words) if words else ""


def age(moment: str | None) -> str:
    """Return the time since `moment`, a text as the daemon's answers have it (ISO 8601), as `duration` shows it. None:
    "-".
    """
    if moment is None:
        return "-"
    return duration(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()))


def short(capture: str | None) -> str:
    """Return the first digits of a capture's id, enough to tell captures apart. None: "-"."""
    return "-" if capture is None else capture[:SHORT]


def headed(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each heading and its value, without those whose value is empty."""
    return [f"{heading:<{_WIDTH}}{value}" for heading, value in facts if value]


# --- sessions


def sessions_table(sessions: Sequence[SessionFacts], *, coloured: bool = False) -> list[str]:
    """Return the lines of `ps`."""
    numbers = ("PID", "UP", "MEMORY", "RESIDENT", "SHARED", "OWN", "PROCESSES", "FILES", "CHANGES", "ATTACHED")
    left = [_time_left(one) for one in sessions]
    more = ("TIME LEFT",) if any(left) else ()
    has_ports = any(one.ports for one in sessions)
    ended = any(one.captured for one in sessions)  # `ps --all`
    rows = [
        (
            one.branch,
            one.state,
            _count(one.pid),
            duration(one.uptime_s),
            size(one.memory_bytes),
            size(one.resident_bytes),
            size(one.shared_bytes),
            size(one.own_bytes),
            _count(one.processes),
            size(one.upper_bytes),
            change_count(one.changes) or "-",
            _count(one.attached),
            one.user or "-",
            *((words or "-",) if more else ()),
            *((_ports(one) or "-",) if has_ports else ()),
            *((age(one.captured) if one.captured else "-", _note_of(one)) if ended else ()),
        )
        for one, words in zip(sessions, left, strict=True)
    ]
    headings = ("BRANCH", "STATE", *numbers, "USER", *more, *(("PORTS",) if has_ports else ()))
    headings += ("AGE", "MESSAGE") if ended else ()
    return table(headings, rows, right=frozenset(numbers), coloured=coloured)


def _note_of(one: SessionFacts) -> str:
    return cleaned(one_line(one.message or ""))[:_LABEL_LENGTH] or "-"


def checkpoints_table(rows: Sequence[Mapping[str, object]], *, coloured: bool = False) -> list[str]:
    """Return the lines of `list`. `rows`: as the command prints them with --json."""
    lines = [
        (
            str(one["name"]),
            str(one["branch"]),
            age(str(one["created"])),
            str(one["tier"]),
            size(one["size_bytes"] if isinstance(one["size_bytes"], int) else None),
            change_count(one["changes"]) or "-",  # type: ignore[arg-type]  # as in CaptureFacts
            cleaned(one_line(str(one["message"])))[:_LABEL_LENGTH] or "-",
        )
        for one in rows
    ]
    headings = ("CHECKPOINT", "BRANCH", "AGE", "TIER", "PROCESSES", "CHANGES", "MESSAGE")
    return table(headings, lines, right=frozenset(("AGE", "PROCESSES")), coloured=coloured)


def full_lines(status: StatusFacts, sessions: Sequence[SessionFacts] = ()) -> list[str]:
    """Return warnings about the home's disk, and limits of sessions, of which FULL or more is used."""
    lines, whole = [], status.disk_bytes
    if whole and whole - status.free_bytes >= FULL * whole:
        how = "'waypoint du' shows what holds it; 'waypoint gc' and 'waypoint rm --now' free it"
        lines.append(f"the disk of {status.home}, to {1 - status.free_bytes / whole:.0%}: {how}")
    if status.share_bytes is not None:
        lines.append(
            f"the pool: until there is room again, each session may write {size(status.share_bytes)} at most, so that "
            "none fills it for all; programs get 'Disk quota exceeded'"
        )
    for one in sessions:
        most = one.limits["disk_bytes"] if one.limits else None
        if most and one.upper_bytes is not None and one.upper_bytes >= FULL * most:
            lines.append(f"{one.branch} has {size(one.upper_bytes)} of changed files; its limit is {size(most)}")
    return lines


def _ports(one: SessionFacts) -> str:
    return ", ".join(f"{published_address(port)} -> {port['port']}" for port in one.ports or ())


def published_address(port: PortFacts) -> str:
    """Return the address on the machine of a published port, such as `127.0.0.1:8000`; "" if it is not published."""
    host = port["host"]
    return "" if host is None else f"{f'[{host}]' if ':' in host else host}:{port['host_port']}"


def ports_table(ports: Sequence[PortFacts], *, coloured: bool = False) -> list[str]:
    """Return the lines of `port`."""
    rows = [(str(one["port"]), cleaned(one["program"]) or "-", published_address(one) or "-") for one in ports]
    return table(("PORT", "PROGRAM", "ON THIS MACHINE"), rows, right=frozenset(("PORT",)), coloured=coloured)


def _time_left(one: SessionFacts) -> str:
    """Until when a session runs if nobody uses it, and in any case; "" without a limit."""
    idle = "" if one.parks_in_s is None else f"{duration(one.parks_in_s)} idle"
    whole = "" if one.ends_in_s is None else f"{duration(one.ends_in_s)} in all"
    return ", ".join(filter(None, (idle, whole)))


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def stop_line(stopped: StopFacts) -> str:
    """Return the line of `stop` about a session."""
    return (
        f"{stopped.branch}  {f'kept as {short(stopped.capture)}  {stopped.tier}' if stopped.capture else 'discarded'}"
    )


def limits(found: LimitFacts) -> str:
    """Return the limits of a session in words; "" if there are none."""
    sizes = {"memory": found["memory_bytes"], "disk": found["disk_bytes"]}
    counts = {"cpus": found["cpus"], "pids": found["pids"]}
    words = [f"{name} {size(value)}" for name, value in sizes.items() if value is not None]
    return ", ".join([*words, *(f"{name} {value:g}" for name, value in counts.items() if value is not None)])


# --- captures


def change_count(changes: ChangeCountFacts | None) -> str:
    """Return what a capture has changed since its parent, such as `+12 -3 in 4 files`; "" if that is not known."""
    if changes is None:
        return ""
    if not changes["files"]:
        return "no changes"
    counts = (("+", changes["insertions"]), ("-", changes["deletions"]))
    lines = [f"{mark}{count}" for mark, count in counts if count]
    files = f"{changes['files']} {'file' if changes['files'] == 1 else 'files'}"
    return f"{' '.join(lines)} in {files}" if lines else files


def log_line(capture: CaptureFacts, *, coloured: bool = False, width: int | None = None) -> str:
    """Return the line of `log` about a capture. If it is longer than `width`, the message is shortened, then the count
    of changes is left out, then names but the first.
    """
    words, counted, names = one_line(capture.message) or capture.reason, change_count(capture.changes), capture.names
    if width is not None:

        def over() -> int:
            return len(_log_line(capture, (names, counted, words), coloured=False)) - width

        if over() > 0 and len(words) > _LEAST_MESSAGE:
            words = f"{words[: max(len(words) - over(), _LEAST_MESSAGE) - 3]}..."
        counted = "" if over() > 0 else counted
        while over() > 0 and len(names) > 1:
            names = names[:-1]
    return _log_line(capture, (names, counted, words), coloured=coloured)


def _log_line(capture: CaptureFacts, shown: tuple[Sequence[str], str, str], *, coloured: bool) -> str:
    """`shown`: the first names, the count of changes, the message."""
    known, counted, words = shown
    names = [styled(name, coloured=coloured, fg="green", bold=True) for name in known]
    names += [f"{len(capture.names) - len(known)} more"] if len(known) < len(capture.names) else []
    kept = "removed" if capture.removed else f"{capture.tier}{_proof_word(capture)}"
    ident = styled(short(capture.capture), coloured=coloured, fg="yellow")
    in_words = f" ({', '.join(names)})" if names else ""
    return "  ".join(filter(None, (f"{ident}{in_words} {kept} {age(capture.created)} ago", counted, words)))


def _proof_word(capture: CaptureFacts) -> str:
    return "" if capture.proof is None else ", proved" if capture.proof["proved"] else ", not proved"


def base(found: BelowFacts | None) -> str:
    """The files below a session, in words."""
    if found is None:
        return ""
    if found["kind"] == "pinned":
        return f"{found['name']} (pinned, {short(found['id'])})".lstrip()
    return (
        f"{found['path']} of this machine, as it is now" if found["kind"] == "folder" else "this machine, as it is now"
    )


def capture_facts(capture: CaptureFacts) -> list[tuple[str, str]]:
    """Return the headings and values of `show` about a capture, for `headed`."""
    layers = [(f"  {kind}", layer(found)) for kind, found in capture.layers.items() if found is not None]
    return [
        ("capture", capture.capture),
        ("image", (capture.image or "") + (", damaged" if capture.image and not capture.durable else "")),
        ("names", ", ".join(capture.names)),
        ("branch", capture.branch),
        ("parents", ", ".join(capture.parents)),
        ("tier", f"{capture.tier}{', its content was removed' if capture.removed else ''}"),
        ("created", f"{capture.created} ({age(capture.created)} ago)"),
        ("reason", capture.reason),
        ("message", one_line(capture.message)),
        ("changes", change_count(capture.changes)),
        ("paused", "" if capture.paused_ms is None else f"{capture.paused_ms:.0f} ms"),
        ("exit", "" if capture.exit is None else str(capture.exit)),
        ("base", base(capture.base)),
        ("user", capture.user),
        ("folder", one_line(capture.cwd)),
        ("machine", ", ".join(capture.machine.values())),
        ("environment", " ".join(map(one_line, capture.environment))),
        ("requested", limits(capture.limits) if capture.limits else ""),
        ("layers", " "),
        *layers,
        *(("degraded", one_line(item["text"])) for item in capture.degraded),
        *(("proof", one_line(line)) for line in _proof(capture)),
    ]


def _proof(capture: CaptureFacts) -> list[str]:
    if capture.proof is None:
        return []
    word = "proved" if capture.proof["proved"] else "not proved"
    return [f"{word} at {capture.proof['at']}", *proof_lines({"proof": capture.proof})]


def layer(found: Mapping[str, object]) -> str:
    """Return the facts about a layer in words. Fields that this program does not know are shown with their names."""
    facts = dict(found)
    stored = facts.pop("size_bytes", None)
    programs, digest = facts.pop("programs", None), facts.pop("digest", None)
    words = [size(stored)] if isinstance(stored, int) else []
    if isinstance(programs, list) and programs:
        words.append(" ".join(one_line(str(program)) for program in programs))
    words += [
        _layer_fact(name, _plain(value))
        for name, value in facts.items()
        if value is not True and value not in (None, [], {})
    ]
    words += [f"digest {digest[:SHORT]}"] if isinstance(digest, str) else []
    return ", ".join(words) or "kept"


def _layer_fact(name: str, value: str) -> str:
    if name == "moment":
        return "as at the capture" if value == "now" else f"as at the last {value}"
    return _LAYER_FACTS[name].format(value) if name in _LAYER_FACTS else f"{name.replace('_', ' ')} {value}"


def _plain(value: object) -> str:
    """`value` without the brackets and quotes of Python."""
    if isinstance(value, Mapping):
        value = [f"{key} {one}" for key, one in value.items()]
    return "; ".join(one_line(text(one)) for one in value) if isinstance(value, list) else one_line(str(value))


def found_lines(found: FoundFacts, *, coloured: bool = False) -> list[str]:
    """Return the lines of `search` about a capture or a running session."""
    names = ", ".join(styled(name, coloured=coloured, fg="green", bold=True) for name in found.names)
    ident = "running" if found.capture is None else short(found.capture)
    head = f"{styled(ident, coloured=coloured, fg='yellow')}{f' ({names})' if names else ''} {age(found.at)} ago"
    more = [f"  and {found.more} more"] if found.more else []
    return [
        head if found.branch in found.names else f"{head}, on {found.branch}",
        *(f"  {one['where']:<8} {cleaned(one['text'])}" for one in found.matches),
        *more,
    ]


# --- differences

_LETTERS = {"added": "A", "removed": "D", "changed": "M", "type": "T", "attributes": "m"}
_LETTER_COLOURS = {"A": "green", "+": "green", "D": "red", "-": "red", "@": "cyan"}


def change_lines(changes: Sequence[ChangeFacts], *, coloured: bool = False, with_total: bool = True) -> list[str]:
    """Return the lines of `diff --stat`."""
    files = [one for one in changes if one.kind == "file"]
    width = max((min(len(_changed_path(one)), 60) for one in files), default=0)
    lines = [_change_line(one, width, coloured=coloured) for one in files]
    if files and with_total:
        lines.append(changed_total(files))
    for kind, heading in (("process", "processes"), ("variable", "environment")):
        named = [one for one in changes if one.kind == kind]
        marks = {"added": "+", "removed": "-", "changed": "~"}
        lines += [f"{heading}:", *(f"{marks[one.change]} {cleaned(one.name)}" for one in named)] if named else []
    return lines


def changed_total(files: Sequence[ChangeFacts]) -> str:
    """Return one line about changed files: their number, and that of inserted and deleted lines."""
    count = sum(one.type != "folder" for one in files)
    insertions, deletions = sum(one.insertions or 0 for one in files), sum(one.deletions or 0 for one in files)
    return (
        f"{count} {'file' if count == 1 else 'files'} changed, "
        f"{insertions} {'line' if insertions == 1 else 'lines'} inserted, {deletions} deleted"
    )


def _changed_path(one: ChangeFacts) -> str:
    return cleaned(f"{one.name}/" if one.type == "folder" else one.name)


def _change_line(one: ChangeFacts, width: int, *, coloured: bool) -> str:
    letter = "R" if one.source else _LETTERS[one.change]
    counts = " ".join(
        styled(f"{mark}{count}", coloured=coloured, fg=_LETTER_COLOURS[mark])
        for mark, count in (("+", one.insertions), ("-", one.deletions))
        if count
    )
    sizes = "" if one.type != "file" or one.insertions is not None else _sizes(one)
    words = [counts or sizes, one.detail, f"from {cleaned(one.source)}" if one.source else ""]
    mark = styled(letter, coloured=coloured, fg=_LETTER_COLOURS.get(letter, "yellow"))
    return f"{mark}  {_changed_path(one):<{width}}  {', '.join(filter(None, words))}".rstrip()


def _sizes(one: ChangeFacts) -> str:
    return (
        size(one.new_size if one.old_size is None else one.old_size)
        if None in (one.old_size, one.new_size)
        else (f"{size(one.old_size)} to {size(one.new_size)}")
    )


def patch_lines(changes: Sequence[ChangeFacts], *, for_terminal: bool = False, coloured: bool = False) -> list[str]:
    """Return the lines of `diff --patch`. `for_terminal`: without control characters, which a session may have written
    into a file.
    """
    lines = [line for one in changes for line in (one.patch or "").split("\n")[:-1]]
    if for_terminal:
        lines = [cleaned(line, keep="\t") for line in lines]
    return [styled(line, coloured=True, fg=_LETTER_COLOURS.get(line[:1], "")) for line in lines] if coloured else lines


def files_table(files: Sequence[FileFacts]) -> list[str]:
    """Return the lines of `ls --long`."""
    headings = ("MODE", "OWNER", "SIZE", "CHANGED", "NAME")
    rows = [
        (
            one.mode,
            f"{one.uid}:{one.gid}",
            size(one.size_bytes) if one.type == "file" else one.type,
            one.changed,
            f"{one.name} -> {one.target}" if one.target is not None else one.name,
        )
        for one in files
    ]
    return table(headings, rows, right=frozenset(headings[:3]))


# --- operations


def operations_table(
    operations: Sequence[OperationFacts], *, coloured: bool = False, width: int | None = None
) -> list[str]:
    """Return the lines of `op log`, wrapped to `width`."""
    rows = [
        (
            str(one.number),
            age(one.at),
            one.verb if one.undoes is None else f"{one.verb} of {one.undoes}",
            _cut(_moved(one)),
            _cut("was undone" if one.undone else one.undo if one.undo is not None else f"no: {one.said}"),
        )
        for one in operations
    ]
    headings = ("NUMBER", "AGE", "VERB", "CHANGED", "UNDO")
    right, wrapped = frozenset(headings[:2]), frozenset(headings[3:])
    return table(headings, rows, right=right, wrapped=wrapped, width=width, coloured=coloured)


def _cut(text: str) -> str:
    """`text`, cut to _OPERATION_LENGTH: a fork of 64 branches changes 64 names."""
    return text if len(text) <= _OPERATION_LENGTH else f"{text[: _OPERATION_LENGTH - 3]}..."


def points_table(points: Sequence[PointFacts], *, coloured: bool = False) -> list[str]:
    """Return the lines of `rewind --list`."""
    rows = [(str(one.number), age(one.at), point_title(one), what_followed(one)) for one in points]
    headings = ("NUMBER", "AGE", "POINT", "THEN")
    return table(headings, rows, right=frozenset(headings[:2]), coloured=coloured)


def point_title(one: PointFacts) -> str:
    """The prompt of a point, or the name of a checkpoint."""
    label = one_line(one.label)
    label = label if len(label) <= _LABEL_LENGTH else f"{label[: _LABEL_LENGTH - 3]}..."
    return ": ".join(filter(None, (one.name, label))) or short(one.capture)


def what_followed(one: PointFacts) -> str:
    """What was done from the point to the next one, as far as it is known."""
    processes = one.processes
    programs = "" if processes is None else f"{processes} {'process' if processes == 1 else 'processes'}"
    changed = ", ".join(filter(None, (change_count(one.changes), programs)))
    return "; ".join([changed, *map(one_line, one.commands[-_COMMANDS_SHOWN:])])


def _end(capture: str | None) -> str:
    return "none" if capture is None else short(capture)


def _moved(one: OperationFacts) -> str:
    changes = {(False, True): "started", (True, True): "replaced", (True, False): "ended", (False, False): "ended"}
    names = [
        f"{name}: {_end(before)} to {_end(after)}" for name, (before, after) in one.moves.items() if before != after
    ]
    sessions = [f"{branch} {changes[before, after]}" for branch, (before, after) in one.sessions.items()]
    return ", ".join([*names, *sessions, *filter(None, [one.note]), *map(text, one.degraded)]) or "-"


def survey_table(found: Sequence[SurveyedProcess], *, coloured: bool = False) -> list[str]:
    rows = [(str(one.pid), one.tier, one.command, one.why) for one in found]
    return table(("PID", "TIER", "COMMAND", "WHY"), rows, right=frozenset({"PID"}), coloured=coloured)


def survey_advice(found: Sequence[SurveyedProcess]) -> list[str]:
    """The lines below `survey_table`."""
    return [*(f"\npid {one.pid}: {one.remedy}" for one in found if one.remedy), f"\n{_ONLY_CRIU}"]
