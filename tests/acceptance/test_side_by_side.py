"""An exec and a person at the same terminal: neither loses anything, and what cannot be is said in words."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.acceptance.people import Person
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import session
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("zsh", "vi")]
Take = Callable[..., Seat]


@pytest.fixture(params=["person", pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix"))])
def shell(home: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    """The branch of a session, once in bash and once in zsh."""
    person: Person = request.getfixturevalue(request.param)
    with session(home, person.name, "--cwd", "/tmp") as name:
        yield name


def line(text: bytes) -> bytes:
    """An expression for `text` as a whole line of output, behind whatever the line editor wrote before it."""
    return rb"(?:[\r\n]|\x1b\[\?2004l)" + text + rb"\r\n"


def attach(outer: Seat, branch: str) -> Seat:
    return outer.type(b"waypoint attach %s\r" % branch.encode()).prompt()


@contextmanager
def running(home: Home, *args: str) -> "Iterator[subprocess.Popen[bytes]]":
    command = subprocess.Popen(home.argv(*args), env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with command:
        try:
            yield command
        finally:
            command.kill()


@pytest.mark.parametrize(
    ("typed", "rest", "shown"),
    [
        (b"echo half a li", b"ne", b"half a line"),
        (
            b"echo \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 'quo",
            b"ted  $x'",
            b"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 quoted  $x",
        ),
        (b"echo three\x1bb", b"two ", b"two three"),
        (b"echo " + b"wrapped " * 30, b"end", b"wrapped " * 30 + b"end"),
        (b"echo first;\x16\n", b"echo second", b"first\r\nsecond"),
        (b"", b"echo nothing was typed", b"nothing was typed"),
    ],
    ids=["plain", "utf8", "cursor", "wrapped", "newline", "empty"],
)
def test_a_half_typed_line_survives(
    home: Home, shell: str, seat: Take, typed: bytes, rest: bytes, shown: bytes
) -> None:
    outer = attach(seat(), shell)
    outer.type(typed)
    if typed:
        outer.see(b"echo")
    for number in range(3):
        assert home.must("exec", "-b", shell, "--", f"echo from exec {number}").stdout == f"from exec {number}\n"
        outer.see(line(b"from exec %d" % number))
    outer.type(rest + b"\r").see(line(re.escape(shown)))


def test_a_half_typed_line_survives_a_cd_and_a_failure(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    outer.type(b"echo in $PW").see(b"echo in")
    assert home.cli("exec", "-b", shell, "--", "cd /usr/lib; nosuchcommand").code == 127
    assert home.cli("exec", "-b", shell, "--", "if then").code == 2
    assert home.cli("exec", "-b", shell, "--timeout", "0.2", "--", "sleep 1000").code == 124
    outer.type(b"D\r").see(line(b"in /usr/lib"))


def test_what_is_typed_while_a_command_runs_comes_after_it(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    with running(home, "exec", "-b", shell, "--", "echo beg''un; until [ -e go ]; do sleep 0.02; done") as command:
        outer.see(line(b"begun"))
        outer.type(b"echo typed meanwhile\r")
        home.must("run", "-b", shell, "touch", "/tmp/go")
        assert command.communicate(timeout=PATIENCE_S)[0] == b"begun\n"
    outer.see(line(b"typed meanwhile"))


def test_the_persons_own_command_is_waited_for(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    outer.type(b"echo beg''un; until [ -e go ]; do sleep 0.02; done; mine=set\r").see(line(b"begun"))
    with running(home, "exec", "-b", shell, "--wait-prompt", "60", "--timeout", "60", "--", "echo $mine") as command:
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(0.5)
        home.must("run", "-b", shell, "touch", "/tmp/go")
        assert command.communicate(timeout=PATIENCE_S)[0] == b"set\n"


def test_a_person_may_interrupt_a_command(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    with running(home, "exec", "-b", shell, "--", "sh -c 'echo begun; exec sleep 1000'; echo not this") as command:
        outer.see(line(b"begun"))
        outer.type(b"\x03")
        output, said = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, output.rstrip(), said) == (130, b"begun", b"")  # bash itself ends the line
    outer.type(b"echo still $((6*7))\r").see(line(b"still 42"))


@pytest.mark.soak(part="timing")
def test_a_person_may_suspend_a_command_and_bring_it_back(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    with running(
        home, "exec", "-b", shell, "--", "sh -c 'echo begun; until [ -e go ]; do sleep 0.02; done'"
    ) as command:
        outer.see(line(b"begun"))
        outer.type(b"\x1a")
        command.communicate(timeout=PATIENCE_S)
    home.must("run", "-b", shell, "touch", "/tmp/go")
    outer.prompt().type(b"fg; echo came ba''ck\r").see(line(b"came back"))


@pytest.mark.parametrize("program", ["vi /tmp/x", "less /etc/services", "sh -c 'read x'", "python3 -q"])
def test_a_program_in_front_is_named_and_left_alone(home: Home, shell: str, seat: Take, program: str) -> None:
    outer = attach(seat(), shell)
    outer.type(program.encode() + b"\r")
    wait_until(
        lambda: program.split()[0] in home.must("run", "-b", shell, "ps", "-eo", "args").stdout, f"{program} runs"
    )
    began = time.monotonic()
    done = home.cli("exec", "-b", shell, "--wait-prompt", "0.5", "--", "echo never")
    assert time.monotonic() - began >= 0.5
    assert (done.code, done.stdout) == (125, "")
    assert "in the foreground" in done.stderr
    assert program.replace("'", "") in done.stderr
    found = home.cli("exec", "-b", shell, "--json", "--wait-prompt", "0", "--", "echo never").json()
    assert (found["exit"], found["by"], found["ended"]) == (125, "waypoint", False)
    assert program.split()[0] in home.must("run", "-b", shell, "ps", "-eo", "args").stdout


def test_an_unfinished_line_of_several_is_left_alone(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    outer.type(b"for x in 1 2\r").see(b"> ")
    done = home.cli("exec", "-b", shell, "--wait-prompt", "0.3", "--", "echo never")
    assert (done.code, done.stdout) == (125, "")
    assert done.stderr
    outer.type(b"do echo x$x\r").type(b"done\r").see(line(b"x1\r\nx2"))
    assert home.must("exec", "-b", shell, "--", "echo again").stdout == "again\n"


def test_a_shell_that_was_replaced_is_named(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    outer.type(b"exec env PYTHON_BASIC_REPL=1 python3 -q\r").see(b">>> ")
    done = home.cli("exec", "-b", shell, "--wait-prompt", "60", "--", "echo never")
    assert (done.code, done.stdout) == (125, "")
    assert "replaced by another program: python3 -q" in done.stderr
    outer.type(b"print(6*7)\r").see(line(b"42"))
    outer.type(b"exit(3)\r")
    assert outer.left() == 3


def test_a_shell_that_the_command_itself_replaces_is_named(home: Home, shell: str) -> None:
    done = home.cli("exec", "-b", shell, "--", "exec sleep 1000")
    assert (done.code, done.stdout) == (125, "")
    assert "replaced by another program: sleep 1000" in done.stderr


def test_a_shell_that_a_person_starts_anew_has_no_hooks_and_that_is_said(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    outer.type(b"exec $SHELL\r").prompt()
    done = home.cli("exec", "-b", shell, "--wait-prompt", "60", "--", "echo never")
    assert (done.code, done.stdout) == (125, "")
    assert "replaced" in done.stderr
    outer.type(b"echo still $((6*7))\r").see(line(b"still 42"))


def test_a_command_that_reads_nothing_ends_a_session_whose_shell_it_replaces(home: Home, shell: str) -> None:
    """Its input is /dev/null, as of any command."""
    found = home.cli("exec", "-b", shell, "--json", "--", "exec python3 -q").json()
    assert (found["exit"], found["by"], found["ended"]) == (0, "command", True)


def test_so_does_one_that_takes_a_moment_to_end(home: Home, shell: str) -> None:
    found = home.cli("exec", "-b", shell, "--json", "--", "exec sleep 0.3").json()
    assert (found["exit"], found["by"], found["ended"]) == (0, "command", True)


@pytest.mark.soak(part="timing")
@pytest.mark.parametrize("how", ["key", "functions", "prompt"])
def test_a_shell_without_hooks_says_so_in_time(home: Home, shell: str, seat: Take, how: str) -> None:
    attach(seat(), shell)
    away = {
        "key": "bind -r '\\e[7717~' 2>/dev/null || bindkey -r '\\e[7717~'",
        "functions": "unset -f __wp __wp_z __wp_arm __wp_take __wp_say __wp_pc 2>/dev/null; unfunction -m '__wp*'",
        "prompt": "PROMPT_COMMAND= PS0= PS1= precmd_functions=() preexec_functions=()",
    }
    home.cli("exec", "-b", shell, "--", away[how])
    began = time.monotonic()
    done = home.cli("exec", "-b", shell, "--wait-prompt", "1", "--", "echo here")
    assert time.monotonic() - began < 10
    if how == "prompt":  # the hooks put themselves back
        assert (done.code, done.stdout) == (0, "here\n")
    else:
        assert (done.code, done.stdout) == (125, ""), done
        assert "hooks" in done.stderr


def test_a_nested_shell_is_a_program_like_any_other(home: Home, shell: str, seat: Take) -> None:
    outer = attach(seat(), shell)
    outer.type(b"sh\r").see(rb"[$#] $")
    done = home.cli("exec", "-b", shell, "--wait-prompt", "0.3", "--", "echo never")
    assert (done.code, done.stdout) == (125, "")
    assert "sh runs in the foreground of the session" in done.stderr
    outer.type(b"exit\r")
    assert home.must("exec", "-b", shell, "--", "echo back").stdout == "back\n"


def test_a_new_user_of_zsh_is_asked_nothing(home: Home, zsh_person: Person) -> None:
    (zsh_person.home / ".zshrc").rename(zsh_person.home / "kept")
    try:
        with session(home, zsh_person.name) as branch:
            assert home.must("exec", "-b", branch, "--", "echo here").stdout == "here\n"
    finally:
        (zsh_person.home / "kept").rename(zsh_person.home / ".zshrc")
