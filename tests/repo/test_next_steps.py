"""Every next step that the program advises is followed by a test."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import next_faults, next_machine
from tests.cli.next_elsewhere import ELSEWHERE
from tests.cli.next_rows import ROWS
from tests.repo import next_steps, tree
from tests.session import causes

WORDS = 5
FOLLOWED = {row.advice for row in ROWS} | set(ELSEWHERE)
FOLLOWED |= {case.advice for case in next_faults.CASES} | next_machine.ON_THE_MACHINE
FOLLOWED |= {row.advice for row in causes.REFUSED} | causes.OUTSIDE

NOT_MADE = {
    "make it appear again: load the kernel module, or bring the processor online": "takes a kernel with a module that "
    "has a masked path, or a processor that can be taken away",
    "a kernel of at least 5.11; or {}": "takes an older kernel, and an ordinary user",
    "load the kernel module btrfs": "takes a kernel that has btrfs as a module, or not at all",
    "run `waypoint setup` without WAYPOINT_CRIU; it installs CRIU 4.2 or newer": "takes a CRIU that is too old; setup "
    "refuses such a one before",
    "end the tracer (strace, gdb) in the session and try again": "a tracer is found before CRIU is asked, with another "
    "text; CRIU meets one that comes between the two",
    "undo that mount (umount)": "nobody can mount in a session's own mount namespace, not even the host's root",
    "start a new session, or give the container CAP_SYS_RESOURCE": "a session without a user namespace, which earlier "
    "versions made",
    "bring the folder back": "a missing folder is found before CRIU is asked, with another text",
    "end the process that uses the port": "a port in use is found before CRIU is asked, with another text",
    "end the process that has this pid": "each session has pids of its own, of which only init's is in use",
    "start the session again": "a session that ends in the moment in which CRIU lets go of it",
    "see the kernel's log (dmesg), and try again when the disk can be written": "takes a disk that fails in a dump",
    "end other programs, and try again": "takes all memory of the machine",
    "end other sessions": "takes most memory of the machine",
    "leave or close {}": "takes a file that has the numbers of a removed folder",
    "make room on the disk that holds the home, and run it again": "takes a disk that fills up during a download",
}
"""Steps that no test follows, each with what it would take to make the situation."""


def test_every_step_is_followed_by_a_test() -> None:
    assert next_steps.advised() - FOLLOWED - NOT_MADE.keys() == set()


def test_the_lists_hold_nothing_that_the_program_does_not_advise() -> None:
    assert (FOLLOWED | NOT_MADE.keys()) - next_steps.advised() == set()


def test_what_is_followed_is_not_on_the_list() -> None:
    assert set() == FOLLOWED & NOT_MADE.keys()


def runs(advice: str) -> Iterator[str]:
    """Each WORDS words in a row of the step, without what is put into it; all of them if there are less."""
    for part in advice.split("{}"):
        words = part.split()
        yield from (" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1)))


def test_the_tests_elsewhere_look_whether_the_step_is_the_one_that_they_follow() -> None:
    told = {path: next_steps.told_in(Path(path)) for path in ELSEWHERE.values()}
    assert [text for text, path in ELSEWHERE.items() if not any(run in told[path] for run in runs(text) if run)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise Failed('a', 'b', 'c', 'do this')", {"do this"}),
        ("raise errors.Failed('a', 'b', 'c', next_step=f'see {x}')", {"see {}"}),
        ("step = 'one' if x else 'two'\nraise Failed('a', 'b', 'c', step)", {"one", "two"}),
        ("said, step = 'a', f'b {c}'\nraise Failed('a', 'b', said, step)", {"b {}"}),
        (
            "raise AptFailed('a', 'b', 'c', step(x))\ndef step(x):\n    if x: return 'one'\n    return f'two {x}'",
            {"one", "two {}"},
        ),
        ("Cause('a', 'b', 'c', 'do this')", {"do this"}),
        ("Diagnosis('a', 'b', 'c', 'do this', is_accident=True)", {"do this"}),
        ("error.next_step = f'{error.next_step}; see {x}' if x else y", {"{}; see {}"}),
        (
            "said, step, _ = why\nwhy = look()\ndef look(): return 'a', 'do this', 1\nFailed('a', 'b', 'c', step)",
            {"do this"},
        ),
        ("note(f'{said}\\n  next: see {x}; then begin')", {"see {}; then begin"}),
        ("S = {1: 'x', 2: 'y'}\nraise Failed('a', 'b', 'c', S.get(1, 'z'))", {"x", "y"}),
        (
            "from waypoint.setup.rows import CHOOSE_ANOTHER\nraise Failed('a', 'b', 'c', CHOOSE_ANOTHER)",
            {"set WAYPOINT"},
        ),
    ],
)
def test_a_step_is_seen_however_it_is_written(source: str, found: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trial, parsed = Path("waypoint/trial.py"), tree.parsed
    monkeypatch.setattr(tree, "python_files", lambda *_: [trial])
    monkeypatch.setattr(tree, "files", tuple)
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source) if path == trial else parsed(path))
    seen = next_steps.advised.__wrapped__()
    assert {text[:12] for text in seen} == {text[:12] for text in found}
