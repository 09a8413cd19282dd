"""Fifty checkpoints change nothing in a session that works hard: an editor in tmux in which somebody types, half-closed
connections, and 1,000 files that are written. Twelve forks of the last checkpoint continue, each to the same results.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import in_process, started
from tests.acceptance.screen import Screen, open_screen
from tests.answers import unusual
from tests.homes import Home
from tests.waiting import PATIENCE_S
from waypoint.client import Client
from waypoint.client.sdk import Session

pytestmark = [
    pytest.mark.soak(part="load"),
    pytest.mark.privileged,
    pytest.mark.timeout(400),
    pytest.mark.requires("criu", "own-criu", "tmux", "vi"),
]

CHECKPOINTS, FORKS = 50, 12
PROGRAM = Path(__file__).with_name("busy_program.py")
LINES = [f"line {number}: {number * number}, and half of it is {number * number / 2}" for number in range(CHECKPOINTS)]
TYPED = "".join(f"{line}\n" for line in LINES)
END = "THE END\n"
SIZE = (30, 100)
PANE_OF_NUMBERS = "'until [ -e /tmp/busy/piped ]; do sleep 0.01; done; yes | cat -n'"
CHECK = r"""
bad { print bad; exit }
$1 != NR || $2 != "y\r" { bad = NR " is " $0 }
END { print "end" }
"""
"""For awk: prints the first line that is not the next of `yes | cat -n`, except the last line, which may be cut off."""
SHOWN = "tmux capture-pane -p -t :.0 | md5sum"

RESULTS = {
    "numbers that differ": "cat /tmp/busy/numbers",
    "panes": "tmux list-panes -F '#{pane_index} #{pane_dead}'",
    "editor": "tmux capture-pane -p -t :.1",
    "text": "cat /tmp/busy/text",
    "connections": "cd /tmp/busy; grep . *.sha256",
    "files": "cd /tmp/busy/files; ls | wc -l; cat $(seq 0 999) | sha256sum",
    "errors": "cat /tmp/busy/log",
}


@contextlib.contextmanager
def busy_session(home: Home, person: Person) -> Iterator[tuple[Session, Screen]]:
    """A session with the program, and a screen that shows its tmux with two panes: numbers, and an editor."""
    with started(home, person.name) as session, open_screen(home, *SIZE) as screen:
        begin(session, screen)
        yield session, screen


def begin(session: Session, screen: Screen) -> None:
    in_process(session, "mkdir /tmp/busy")
    session.run("sh", "-c", "cat >/tmp/busy/program.py", stdin=PROGRAM.read_bytes())
    session.run("sh", "-c", "cat >/tmp/busy/check.awk", stdin=CHECK.encode())
    session.exec("python3 /tmp/busy/program.py </dev/null >/tmp/busy/log 2>&1 &")
    wait_in(session, "[ -e /tmp/busy/begun ] || [ -s /tmp/busy/log ]")
    screen.enter(f"waypoint attach {session.branch}")
    screen.see("[$]$")
    screen.enter(f"tmux -f /dev/null new-session {PANE_OF_NUMBERS}")
    screen.see(r"^\[0\] 0:")
    in_process(session, "tmux pipe-pane 'awk -f /tmp/busy/check.awk >/tmp/busy/numbers'")
    in_process(session, "tmux split-window 'vi /tmp/busy/text'; touch /tmp/busy/piped")
    screen.see("^~$")
    screen.type("i")


def type_line(screen: Screen, line: str) -> None:
    for key in line:
        screen.type(key)
    screen.press("Enter")


def wait_in(session: Session, condition: str) -> None:
    """Wait until the condition, shell text, holds in the session."""
    text = f"until {condition}; do sleep 0.02; done"
    assert session.run("timeout", f"{PATIENCE_S}", "sh", "-c", text).exit == 0, condition


def stop_numbers(session: Session) -> None:
    """Wait until the pane shows other numbers, and end its program and the check of its output."""
    wait_in(session, f'[ "$({SHOWN})" != "{in_process(session, SHOWN).strip()}" ]')
    in_process(session, "tmux pipe-pane -t :.0; tmux respawn-pane -k -t :.0 'exec sleep 1000'")
    wait_in(session, "grep -q end /tmp/busy/numbers")


def results(session: Session, screen: Screen) -> dict[str, str]:
    """Let everything come to its end, and save the editor's text; return what readers get."""
    in_process(session, "touch /tmp/busy/go")
    screen.type(END.strip())
    screen.press("Escape")
    screen.enter(":w")
    screen.see("B written")
    wait_in(session, "[ -e /tmp/busy/done ]")
    return {name: in_process(session, command) for name, command in RESULTS.items()}


def test_checkpoints_change_nothing_and_twelve_forks_continue(home: Home, person: Person) -> None:
    with busy_session(home, person) as (session, screen):
        for line in LINES:
            type_line(screen, line)
        stop_numbers(session)
        expected = results(session, screen)
    assert expected["text"] == TYPED + END
    with busy_session(home, person) as (session, screen):
        with ThreadPoolExecutor(1) as typist:
            for line in LINES:
                typing = typist.submit(type_line, screen, line)
                assert unusual(session.checkpoint("busy", tier="live", force=True).degraded) == []
                typing.result()
        branches = [f"{session.branch}-{number}" for number in range(FORKS)]
        forks = Client(home.path).fork("busy", *branches, tier="live")
        for one in (*forks, session):
            stop_numbers(one)
        assert results(session, screen) == expected
        for fork in forks:
            with open_screen(home, *SIZE) as own_screen:
                own_screen.enter(f"waypoint attach {fork.branch}")
                own_screen.see(r"^\[0\] 0:")
                found = results(fork, own_screen)
            fork.stop(discard=True)
            typed = found["text"].removesuffix(END)  # until some key of the last line
            assert TYPED.startswith(typed)
            assert len(typed) >= len(TYPED) - len(LINES[-1]) - 1
            assert {**found, "text": "", "editor": ""} == {**expected, "text": "", "editor": ""}, fork.branch
