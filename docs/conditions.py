"""Prints docs/conditions.md from the tables of the program: .venv/bin/python docs/conditions.py > docs/conditions.md"""

from waypoint.model.conditions import CONDITIONS, ERROR_CODES
from waypoint.processes.criu.cause_table import CAUSES

HEAD = """# Conditions and error codes

Programs tell conditions apart by their codes. A code never changes its meaning; a later version may add codes. The
sentences are for people, and may change. This page is made from the program's tables.

## Degradations

`degraded`, `left_out`, `lost` and `unlimited` in JSON are lists of `{code, subject, detail, text}`. `text` is the
sentence. `about` is present if the item is about the state before a restore or undo (`replaced`, `ended`), `branch` if
the answer is about several branches. `usual` is present and true for conditions that hold for most sessions, and that
few programs notice; commands do not print these.
"""

ERRORS = """
## Proofs

`proof.code` in JSON is "" if the capture is proved, `differs` if restored processes are not as captured
(`proof.differences` lists the differences), or the code of the error that prevented the restore.

## Errors

`--json` and the API answer `{"error": {code, exit, tried, on, said, next}}`. `exit` is the exit status of the command;
the text reads: cannot *tried* *on*: *said*; next: *next*.
"""

CRIU = """
## Errors of CRIU

Exit status 5; 125 if another try may succeed. A restore is tried twice, and then has exit status 5. Besides these:
`criu-other` (the message quotes CRIU's own error line), `criu-died` (CRIU was killed, or crashed), `criu-silent` (CRIU
hung, and was killed).
"""


def page() -> str:
    """The text of docs/conditions.md."""
    conditions = [
        (f"`{code}`{' (usual)' if row.is_usual else ''}", row.meaning, row.remedy) for code, row in CONDITIONS.items()
    ]
    errors = [(f"`{code}`", str(row.exit), row.meaning, row.remedy or "-") for code, row in ERROR_CODES.items()]
    causes = [(f"`criu-{row.name}`", _plain(row.meaning), _plain(row.next_step)) for row in CAUSES]
    return "".join(
        [
            HEAD,
            _table(("code", "meaning", "remedy"), conditions),
            ERRORS,
            _table(("code", "exit", "meaning", "remedy"), errors),
            CRIU,
            _table(("code", "meaning", "remedy"), causes),
        ]
    )


def _plain(text: str) -> str:
    return text.replace("{", "*").replace("}", "*").replace("|", "\\|")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(page(), end="")
