"""Lines for people about the result of an operation, outside and inside a session. The fast path loads this file."""

from waypoint.model.errors import cleaned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HEADINGS = {
    "degraded": "degraded",
    "respawned": "started again",
    "offered": "typed at the prompt, press Enter to run it",
    "lost": "lost",
}
"""The fields of an answer that list what was not kept or restored completely, and their headings. `--json` prints them
for every verb.
"""

NOT_RUN = dict.fromkeys(("exit", "output", "output_base64", "said", "error"))
"""What `--json` prints about the command in a fork if there is none."""

EXIT_NOT_PROVED = 5
_MIB = 1 << 20
SHORT = 12  # digits of a capture's id that are printed for people


def degraded_lines(*answers: "Mapping[str, object]") -> list[str]:
    """Return the lines about parts that were not kept or restored completely. Lines that all answers share come first.
    If there are several answers, each must have a `branch`. Without usual conditions.
    """
    found = [_items(answer) for answer in answers]
    common = [item for item in (found[0] if found else []) if all(item in items for items in found)]
    lines = [f"{heading}: {said}" for heading, said in common]
    for answer, items in zip(answers, found, strict=True):
        lines += [f"{heading}: {answer['branch']}: {said}" for heading, said in items if (heading, said) not in common]
    return [cleaned(line) for line in lines]


def replaced_lines(session: "Mapping[str, object]") -> list[str]:
    """Return the lines about the session that a restore has replaced; none if it has replaced none."""
    kept, branch = session.get("replaced"), session["branch"]
    if not isinstance(kept, dict):
        return []
    done = session.get("exchanged")
    files = [_exchanged_line(done)] if isinstance(done, dict) else []
    where = f"kept as {kept['capture'][:SHORT]}, tier {kept['tier']}"
    lines = [*files, f"replaced: the session on {branch}, {where}; to get it back: waypoint undo -b {branch}"]
    return [cleaned(line) for line in lines]


def _exchanged_line(done: "Mapping[str, float]") -> str:
    paused = f"the session was paused for {done['paused_ms'] / 1000:.3g} s"
    return f"files: {done['changed']} changed, {done['written_bytes'] / _MIB:.1f} MiB written; {paused}"


def point_line(made: "Mapping[str, object]") -> str:
    """The line of `point`."""
    capture, paused = str(made["capture"])[:SHORT], made["paused_ms"]
    pause = f"paused {paused:.0f} ms" if isinstance(paused, float) else ""
    return f"{capture}  {made['tier']}  {'nothing has changed since this capture' if made['reused'] else pause}"


def is_proved(answer: "Mapping[str, object]") -> bool:
    proof = answer.get("proof")
    return isinstance(proof, dict) and bool(proof["proved"])


def status_of(answer: "Mapping[str, object]") -> int:
    """Return the exit status of a checkpoint or a proof: 5 if a requested proof has failed, else 0."""
    return 0 if answer.get("proof") is None or is_proved(answer) else EXIT_NOT_PROVED


def proof_lines(answer: "Mapping[str, object]") -> list[str]:
    """Return the lines about the reasons why the capture of an answer is not proved; none if it is proved."""
    proof = answer.get("proof")
    if not isinstance(proof, dict) or proof["proved"]:
        return []
    said = [proof["said"]] if proof["said"] else [_difference_line(one) for one in proof["differences"]]
    return [cleaned(f"not proved: {line}") for line in said or [proof["code"]]]


def _difference_line(one: "Mapping[str, object]") -> str:
    where = f"process {one['pid']}" if one["fd"] is None else f"process {one['pid']}, descriptor {one['fd']}"
    return f"{where}: captured {one['captured']}, restored {one['restored']}"


def undone_lines(undone: "Mapping[str, object]") -> list[str]:
    """Return the lines about the operation that was undone: its number, its effect, who did it and when."""
    lines = [f"undo of operation {undone['number']} ({undone['verb']}): {undone['undo']}"]
    lines += [f"the operation was requested {undone['by']}, {undone['at']}"] if undone["by"] else []
    return [cleaned(line) for line in lines]


def _items(answer: "Mapping[str, object]") -> list[tuple[str, str]]:
    return [
        (heading, text(one))
        for name, heading in HEADINGS.items()
        if isinstance(answer.get(name), list)
        for one in answer[name]  # type: ignore[attr-defined]
        if not (isinstance(one, dict) and one.get("usual"))
    ]


def text(one: object) -> str:
    """A command line of an answer, or the sentence of a ConditionFacts."""
    return str(one["text"]) if isinstance(one, dict) else str(one)
