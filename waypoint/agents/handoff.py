"""`waypoint handoff`: one document about a capture, in Markdown, for whoever goes on with it."""

import re
from collections.abc import Iterator, Sequence

from waypoint.model.errors import one_line
from waypoint.model.facts import CaptureFacts, HandoffFacts, LayerFacts, StepFacts
from waypoint.model.rendering import age, base, change_count, change_lines, layer, short

_TICKS = re.compile("`+")


def document(facts: HandoffFacts) -> str:
    """The document. Text that comes from the session is only in code spans and code blocks."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: HandoffFacts) -> Iterator[str]:
    found = facts.capture
    yield from (f"# Handoff: {facts.name}", "")
    if facts.live:
        yield from (f"A session runs on {facts.name}; this describes its last capture, not what came after it.", "")
    yield from _about(found)
    yield from ("", "## Go on from here", "", *_ways(facts))
    yield from _section("Processes", _processes(found))
    yield from _section(f"Files that differ from this machine: {facts.file_count}", _files(facts))
    yield from _section("What led here, the newest first", [_step(one) for one in facts.steps])
    yield from _section("Attached layers", list(_attached(facts)))
    lost = [f"* {_code(one['text'])}" for one in found.degraded if not one.get("usual")]
    yield from _section("Kept less faithfully", lost)
    yield from _section("Last output of the terminal", _block(facts.output) if facts.output else [])


def _about(found: CaptureFacts) -> Iterator[str]:
    image = f"`{found.image}`" if found.image else "not stored yet"
    machine = ", ".join(found.machine.values())
    about = (
        ("capture", f"`{found.capture}`"),
        ("image", image),
        ("names", ", ".join(found.names)),
        ("branch", found.branch),
        ("made", f"{found.created} ({age(found.created)} ago), {found.reason}"),
        ("message", _code(found.message) if found.message else ""),
        ("parents", ", ".join(map(short, found.parents))),
        ("tier", found.tier),
        ("changes since its parent", change_count(found.changes)),
        ("base, user, folder", f"{base(found.base)}; {found.user}, {_code(found.cwd)}"),
        ("machine", machine),
    )
    yield from (f"* {name}: {text}" for name, text in about if text)


def _ways(facts: HandoffFacts) -> Iterator[str]:
    name, new = facts.name, "NEW"
    file = f"{name.replace('/', '-')}.tar"
    yield from (
        "```",
        f"waypoint restore {name} --new {new}    # a session on the new branch {new}",
        f"waypoint fork {name} -n 3 --prefix try    # or three sessions, try-1 to try-3",
        f"waypoint diff {name}; waypoint apply {name}    # its changes, and bringing them onto this machine",
        "",
        f"waypoint export {name} {file}    # for another machine, and there:",
        f"waypoint import {file} --as {new}; waypoint restore {new} --new {new}-1",
        "```",
    )
    if facts.capture.tier == "live":
        yield from ("", "Processes come back on a machine with this kernel and processor; elsewhere the files do.")


def _processes(found: CaptureFacts) -> list[str]:
    kept, programs = found.layers.get("processes"), found.layers.get("programs")
    lines = [f"{kept.get('count')} processes, kept with their memory:"] if kept else []
    names = (programs.get("programs") if programs else None) or (kept.get("programs") if kept else None) or []
    return [*lines, *([""] if lines and names else []), *(f"* {_code(one)}" for one in names)]


def _files(facts: HandoffFacts) -> list[str]:
    if facts.files_said:
        return [f"They are not known: {_code(facts.files_said)}"]
    lines = _block(change_lines(facts.files, with_total=False)) if facts.files else []
    if len(facts.files) < facts.file_count:
        left = "These are the first that no `.gitignore` names and that are no caches and logs."
        lines += ["", f"{left} All: `waypoint diff {facts.name} --name-only`"]
    return lines


def _step(one: StepFacts) -> str:
    titles = [*one["names"], *(_code(text) for text in (one["message"], *one["labels"]) if text)]
    commands = f"; commands: {', '.join(map(_code, one['commands']))}" if one["commands"] else ""
    return f"* {short(one['capture'])}, {age(one['at'])} ago: {', '.join(titles)}{commands}"


def _attached(facts: HandoffFacts) -> Iterator[str]:
    attached: dict[str, LayerFacts] = {
        kind: one for kind, one in facts.capture.layers.items() if one and one.get("attached")
    }
    for kind, one in attached.items():
        get = f"waypoint layer get {facts.name} {kind} ./{kind}"
        yield f"* {kind}: {_code(layer(one))}; `{get}`"


def _section(heading: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", f"## {heading}", "", *lines)


def _fence(text: str, least: int) -> str:
    """A row of backticks that is longer than any in the text (CommonMark 0.31.2, 4.5 and 6.1)."""
    return "`" * max(least, 1 + max((len(one) for one in _TICKS.findall(text)), default=0))


def _code(text: str) -> str:
    """One line of text as a code span."""
    shown = one_line(text)
    fence = _fence(shown, 1)
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}"


def _block(lines: Sequence[str]) -> list[str]:
    fence = _fence("\n".join(lines), 3)
    return [fence, *lines, fence]
