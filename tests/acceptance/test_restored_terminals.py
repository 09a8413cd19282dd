"""A restored terminal: its programs, half-typed lines, control keys and the screen."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import WAYS, Mood, Way, in_process, new_name, restore_as, started
from tests.acceptance.screen import Screen
from tests.acceptance.seat import Seat
from tests.answers import unusual
from tests.homes import Home
from waypoint.client import Client
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "zsh")]
Take = Callable[..., Seat]
Open = Callable[..., Screen]


@pytest.fixture(params=["person", pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix"))])
def session(home: Home, request: pytest.FixtureRequest) -> Iterator[Session]:
    with started(home, request.getfixturevalue(request.param).name) as live:
        yield live


def capture_and_restore(home: Home, session: Session, way: Way, outer: Seat, new: Take, spoil: bytes = b"") -> Seat:
    """Capture the session, type `spoil`, restore the capture; return a seat attached to the restored session.

    That is `outer` after a restore in place, and a new seat at a fork.
    """
    checkpoint = new_name(session)
    assert unusual(session.checkpoint(checkpoint, tier="live").degraded) == []
    if spoil:
        outer.type(spoil)
    back = restore_as(home, session, checkpoint, way)
    if way == "restore":
        return outer
    return new().type(b"waypoint attach %s\r" % back.branch.encode())


def wait_foreground(home: Home, session: Session) -> None:
    """Wait until `cat` reads input in the newest fork of the session, or in the session if it has no fork.

    The shell prints the command line before it sets the terminal's modes for `cat`; keys typed earlier are treated
    differently.
    """
    live = sorted(facts.branch for facts in Client(home.path).sessions())
    last = [branch for branch in live if branch == session.branch or branch.startswith(f"{session.branch}-")][-1]
    in_process(Client(home.path).session(last), "until ps -o stat= -C cat | grep -q S; do sleep 0.01; done")


@pytest.mark.parametrize("way", WAYS)
def test_a_half_typed_line_is_restored(home: Home, session: Session, seat: Take, way: Way) -> None:
    outer = seat().attach(session.branch)
    outer.type(b"echo half-$((6 *").see(rb"\(\(6 \*")
    back = capture_and_restore(home, session, way, outer, seat, b" 2)) spoilt\r")
    back.see(rb"\(\(6 \*")
    back.type(b" 7))\r").see(rb"half-42\r\n")


@pytest.mark.parametrize("way", WAYS)
def test_control_keys_stop_and_interrupt_a_restored_program(home: Home, session: Session, seat: Take, way: Way) -> None:
    outer = seat().attach(session.branch)
    outer.type(b"sh -c 'echo run\"\"ning; exec cat'\r").see(rb"running\r\n")
    back = capture_and_restore(home, session, way, outer, seat, b"\x04")
    back.type(b"echoed\r").see(rb"echoed\r\nechoed\r\n")
    back.type(b"\x1a").see(rb"[Ss](topped|uspended)")
    back.prompt().type(b"fg\r").see(rb"exec cat'\r\n")
    wait_foreground(home, session)
    back.type(b"again\r").see(rb"again\r\nagain\r\n")
    back.type(b"\x03").prompt().type(b"echo status $?\r").see(rb"status 130\r\n")
    back.prompt().type(b"sh -c 'echo n\"\"ew; exec sleep 1000'\r").see(rb"new\r\n")
    back.type(b"\x03").prompt().type(b"echo status $?\r").see(rb"status 130\r\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_job_can_be_continued_in_the_foreground(home: Home, session: Session, seat: Take, way: Way) -> None:
    outer = seat().attach(session.branch)
    outer.type(b"cat\r").see(rb"cat\S*\r+\n")
    wait_foreground(home, session)
    outer.type(b"one\r").see(rb"one\r\none\r\n")
    outer.type(b"\x1a").see(rb"[Ss](topped|uspended)")
    outer.prompt()
    back = capture_and_restore(home, session, way, outer, seat, b"kill -9 %1\r").prompt()
    back.type(b"fg\r").see(rb"cat\r\n")
    wait_foreground(home, session)
    back.type(b"two\r").see(rb"two\r\ntwo\r\n")
    back.type(b"\x04").prompt().type(b"jobs; echo status $?\r").see(rb"[\r\n]status 0\r\n")


@pytest.mark.parametrize("way", WAYS)
def test_the_restored_shell_and_its_new_children_have_the_controlling_terminal(
    home: Home, session: Session, seat: Take, way: Way
) -> None:
    outer = seat().attach(session.branch)
    back = capture_and_restore(home, session, way, outer, seat).prompt()
    back.type(b"tty; echo to the ter''minal >/dev/tty\r").see(rb"/dev/pts/0\r\nto the terminal\r\n")
    back.prompt().type(b'sh -c \'echo re""ads; read x </dev/tty; echo "<$x>" >/dev/tty\'\r').see(rb"reads\r\n")
    back.type(b"typed\r").see(rb"<typed>\r\n")
    back.prompt().type(b"ps -o tty=,tpgid= -p $$ | tr -s ' '; echo $$\r").see(rb"pts/0 \d+\r\n\d+\r\n")


@pytest.mark.parametrize("way", WAYS)
def test_input_typed_ahead_is_restored(home: Home, session: Session, seat: Take, way: Way) -> None:
    outer = seat().attach(session.branch)
    outer.type(b'until [ -e /tmp/go ]; do sleep 0.05; done; read first; echo "<$first>"\r').see(rb"\r\n")
    in_process(session, "until pgrep sleep >/dev/null; do :; done")
    outer.type(b"for the read\recho ahead-$((6 * 7))\recho unf").see(rb"ahead-\$\(\(6 \* 7\)\)\r\necho unf")
    checkpoint = new_name(session)
    session.checkpoint(checkpoint, tier="live")
    in_process(session, "touch /tmp/go")
    outer.see(rb"\A<for the read>\r\n")  # the typed line is not echoed a second time
    outer.see(rb"ahead-42\r\n")
    outer.type(b"inished\r").see(rb"[\r\n]unfinished\r\n")
    back = restore_as(home, session, checkpoint, way)
    again = outer if way == "restore" else seat().type(b"waypoint attach %s\r" % back.branch.encode())
    again.see(rb"ahead-\$\(\(6 \* 7\)\)\r\necho unf")
    in_process(back, "touch /tmp/go")
    again.see(rb"\A<for the read>\r\n")
    again.see(rb"ahead-42\r\n")
    again.type(b"inished\r").see(rb"[\r\n]unfinished\r\n")


TERMINAL_KEPT_OPEN = "import os, time; os.dup2(os.open(os.ttyname(0), 2), 20); print('o' + 'pen'); time.sleep(1000)"
"""A program that keeps the terminal open on another descriptor, as node does."""


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_keeps_the_terminal_open_is_restored(home: Home, session: Session, seat: Take, way: Way) -> None:
    outer = seat().attach(session.branch)
    outer.type(f'python3 -c "{TERMINAL_KEPT_OPEN}"\r'.encode()).see(rb"open\r\n")
    again = capture_and_restore(home, session, way, outer, seat)
    again.see(rb"open")  # the screen is redrawn
    again.type(b"\x03").see(rb"KeyboardInterrupt")
    again.prompt().type(b"echo status $?\r").see(rb"status 130\r\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_nested_shell_is_reported_and_restored(home: Home, session: Session, seat: Take, way: Way) -> None:
    outer = seat().attach(session.branch)
    session.exec("(sleep 1000; :) & sh -c 'sleep 1000; :' &")
    assert unusual(session.checkpoint(new_name(session), tier="live").degraded) == []
    outer.type(b"bash --norc\r").see(rb"bash-5\S+")
    checkpoint = new_name(session)
    [told] = unusual(session.checkpoint(checkpoint, tier="live").degraded)
    assert (told["code"], told["subject"]) == ("nested-shell", "bash")
    back = restore_as(home, session, checkpoint, way)
    again = outer if way == "restore" else seat().type(b"waypoint attach %s\r" % back.branch.encode())
    again.type(b"echo $((6 * 7))\r").see(rb"[\r\n]42\r\n")
    again.type(b"exit\r").prompt().type(b"sh -c 'echo n\"\"ew; exec sleep 1000'\r").see(rb"new\r\n")
    again.type(b"\x03").prompt().type(b"echo status $?\r").see(rb"status 130\r\n")


class Program(NamedTuple):
    """An interactive program: input and expected output at its start, before the capture and after the restore."""

    start: bytes
    ready: bytes
    typed: bytes
    seen: bytes
    after: bytes
    then: bytes


PROGRAMS = {
    "python": Program(
        b"PYTHON_BASIC_REPL=1 python3 -i -q\r",
        rb">>> ",
        b"x = 6; import sys\r",
        rb">>> ",
        b"print('got', x * 7)\r",
        rb"got 42\r\n",
    ),
    "python in a block": Program(
        b"PYTHON_BASIC_REPL=1 python3 -i -q\r",
        rb">>> ",
        b"for n in (6, 7):\r",
        rb"\.\.\. ",
        b"  print('got', n)\r\r",
        rb"got 6\r\ngot 7\r\n",
    ),
    "node": Program(b"node\r", rb"> ", b"let x = 6\r", rb"undefined\S*\r\n", b"'got ' + x * 7\r", rb"got 42"),
    "cat": Program(b"cat\r", rb"cat\r\n", b"one\r", rb"one\r\n(?s:.*?)one\r\n", b"two\r", rb"two\r\n(?s:.*?)two\r\n"),
}


@pytest.mark.parametrize(
    ("mood", "way"),
    [
        ("busy", "fork"),
        ("quiet", "restore"),
        pytest.param("quiet", "fork", marks=pytest.mark.soak(part="matrix")),
        pytest.param("busy", "restore", marks=pytest.mark.soak(part="matrix")),
    ],
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.requires("node") if name == "node" else ()) for name in PROGRAMS]
)
def test_a_program_that_waits_for_input_is_restored(
    home: Home, person: Person, seat: Take, name: str, mood: Mood, way: Way
) -> None:
    program = PROGRAMS[name]
    with started(home, person.name, mood) as session:
        outer = seat().type(b"waypoint attach %s\r" % session.branch.encode())
        outer.see(rb"[#$] ")
        outer.type(program.start).see(program.ready)
        outer.type(program.typed).see(program.seen)
        back = capture_and_restore(home, session, way, outer, seat, b"\x03\x04")
        if way == "fork":
            back.see(program.seen)
        back.type(program.after).see(program.then)


@pytest.mark.requires("less", "tmux")
@pytest.mark.parametrize("way", WAYS)
def test_a_pager_is_restored_at_its_position(home: Home, person: Person, screen: Open, way: Way) -> None:
    with started(home, person.name) as session:
        first = screen(20, 80)
        first.enter(f"waypoint attach {session.branch}")
        first.see("[$]$")
        first.enter("seq -f 'line %g' 1000 | less")
        first.see("^line 1$")
        first.type("100g")
        first.see("^line 100$")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        first.type("q")
        first.see("[$]$")
        back = restore_as(home, session, checkpoint, way)
        again = first
        if way == "fork":
            again = screen(20, 80)
            again.enter(f"waypoint attach {back.branch}")
        again.see("^line 100$")
        again.enter("/line 500$")
        again.see("^line 500$")
        again.type("q")
        again.see("[$]$")
        assert not again.flag("alternate_on")


@pytest.mark.soak(part="timing")
@pytest.mark.requires("vi", "tmux")
@pytest.mark.parametrize("size", [(30, 100), (20, 70), (40, 120)], ids=["same size", "smaller", "larger"])
def test_an_attached_screen_shows_a_restored_editor_that_had_ended(
    home: Home, person: Person, screen: Open, size: tuple[int, int]
) -> None:
    with started(home, person.name) as session:
        here = screen(30, 100)
        here.enter(f"waypoint attach {session.branch}")
        here.see("[$]$")
        here.enter("vi /tmp/text")
        here.see("^~$")
        here.enter("ifirst line")
        here.type("half a li")
        here.see("^half a li$")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        here.press("Escape")
        here.enter(":q!")
        here.see("[$]$")
        assert not here.flag("alternate_on")
        here.enter("clear; echo left")
        here.see("^left$")
        here.resize(*size)
        session.restore(checkpoint)
        here.see("^half a li$")
        here.see_all(lambda shown: shown.flag("alternate_on"), expected=True)
        here.type("ne, and the rest")  # the editor is still in insert mode
        here.see("^half a line, and the rest$")
        rows = here.see("^first line$").splitlines()
        assert len(rows) <= size[0]
        assert re.match("~", rows[size[0] - 4])
        here.press("Escape")
        here.enter(":wq")
        here.see("[$]$")
        assert not here.flag("alternate_on")
        assert in_process(session, "cat /tmp/text") == "first line\nhalf a line, and the rest\n"
        here.enter("clear; stty size")
        here.see(f"^{size[0]} {size[1]}$")


@pytest.mark.requires("tmux")
def test_attached_clients_stay_attached_over_a_restore(home: Home, person: Person, screen: Open) -> None:
    with started(home, person.name) as session:
        screens = [screen(24, 80), screen(30, 90)]
        for one in screens:
            one.enter(f"waypoint attach {session.branch}")
            one.see("[$]$")
        screens[0].enter("mine=before; echo be''fore")
        for one in screens:
            one.see("^before$")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        screens[1].enter("mine=after; echo af''ter")
        for one in screens:
            one.see("^after$")
        session.restore(checkpoint)
        for one in screens:
            one.see_all(lambda shown: "after" in shown.text().splitlines(), expected=False)
            one.see("^before$")
        screens[1].enter('echo "it is $mine" $(stty size)')
        for one in screens:
            one.see("^it is before 24 80$")
