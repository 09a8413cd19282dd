"""What people are told of an answer of the daemon, outside and inside a session: what was kept, or was brought back,
less faithfully than it was. Imports nothing but what every command has loaded.
"""

from waypoint.model.errors import cleaned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HEADINGS = {
    "degraded": "degraded",
    "respawned": "started again",
    "offered": "on the shell's line, for Enter to run",
    "lost": "lost",
}
"""The fields of an answer that tell it, which `--json` prints for every verb, with their headings for people."""

_MIB = 1 << 20
NOT_IN = "not in the session"
"""What a line begins with that tells of a mount which a session lacks."""
SHORT = 12  # digits of a capture's id that are printed for people


def told(*answers: "Mapping[str, object]") -> list[str]:
    """The lines about these answers, which have a `branch` each if they are several: first what they have in common."""
    found = [_items(answer) for answer in answers]
    common = [item for item in (found[0] if found else []) if all(item in items for items in found)]
    lines = [f"{heading}: {said}" for heading, said in common]
    for answer, items in zip(answers, found, strict=True):
        lines += [f"{heading}: {answer['branch']}: {said}" for heading, said in items if (heading, said) not in common]
    return [cleaned(line) for line in lines]


def told_replaced(session: "Mapping[str, object]") -> list[str]:
    """The lines about what the answer to a restore says it has brought back, and what it has replaced, if anything."""
    restored, kept, branch = session.get("restored"), session.get("replaced"), session["branch"]
    back = [cleaned(_told_restored(restored))] if isinstance(restored, dict) else []
    if not isinstance(kept, dict):
        return back
    done = session.get("exchanged")
    files = [_told_exchanged(done)] if isinstance(done, dict) else []
    where = f"kept as {kept['capture'][:SHORT]}, tier {kept['tier']}"
    lines = [*files, f"replaced: what was on {branch}, {where}; to get it back: waypoint undo -b {branch}"]
    return [*back, *map(cleaned, lines)]


def _told_restored(done: "Mapping[str, str]") -> str:
    capture, name = done["capture"][:SHORT], done["name"]
    match done["moment"]:
        case "now":
            return f"brought back: {name} as it is now, captured as {capture}"
        case "last":
            return f"brought back: {name} as it was captured last, {capture}"
        case _:
            return (
                f"brought back: {capture}" if done["capture"].startswith(name) else f"brought back: {name}, {capture}"
            )


def _told_exchanged(done: "Mapping[str, float]") -> str:
    stood = f"the session stood still for {done['paused_ms'] / 1000:.3g} s"
    return f"files: {done['changed']} changed, {done['written_bytes'] / _MIB:.1f} MiB written; {stood}"


def told_taken_back(undone: "Mapping[str, object]") -> list[str]:
    """The lines about the operation that an undo has taken back: which one, what that did, whose it was and of when."""
    lines = [f"took back {undone['number']} ({undone['verb']}): {undone['undo']}"]
    lines += [f"it was done {undone['by']}, {undone['at']}"] if undone["by"] else []
    lines += ["no file was changed: only names were"] if undone.get("removed") else []
    return [cleaned(line) for line in lines]


def _items(answer: "Mapping[str, object]") -> list[tuple[str, str]]:
    return [
        (heading, str(said))
        for name, heading in HEADINGS.items()
        if isinstance(answer.get(name), list)
        for said in answer[name]  # type: ignore[attr-defined]
    ]
