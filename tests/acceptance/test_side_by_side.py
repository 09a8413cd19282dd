"""An exec while a user types at the same terminal: neither loses anything. See also tests/session/test_exec_line.py."""

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import session
from tests.collecting import collecting
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("zsh", "vi")]
Take = Callable[..., Seat]


@pytest.fixture(params=["person", pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix"))])
def shell(home: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    """The branch of a session whose shell is bash or zsh."""
    person: Person = request.getfixturevalue(request.param)
    with session(home, person.name, "--cwd", "/tmp") as name:
        yield name


def line(text: bytes) -> bytes:
    """Return a regular expression for `text` as a whole line of output."""
    return rb"(?:[\r\n]|\x1b\[\?2004l)" + text + rb"\r\n"


def test_a_half_typed_line_survives_commands(home: Home, shell: str, seat: Take) -> None:
    """The line is longer than the screen; the commands change the folder, fail, do not parse or run into a timeout."""
    outer = seat().attach(shell)
    outer.type(b"echo " + b"wrapped " * 30 + "\u00e4\u20ac in $PW".encode()).see(b" in")
    assert home.must("exec", "-b", shell, "--", "echo from exec").stdout == "from exec\n"
    outer.see(line(b"from exec"))
    assert home.cli("exec", "-b", shell, "--", "cd /usr/lib; nosuchcommand").code == 127
    assert home.cli("exec", "-b", shell, "--", "if then").code == 2
    assert home.cli("exec", "-b", shell, "--timeout", "0.2", "--", "sleep 1000").code == 124
    outer.type(b"D\r").see(line(b"wrapped " * 30 + "\u00e4\u20ac in /usr/lib".encode()))


def test_a_user_at_the_terminal_can_interrupt_an_exec(home: Home, shell: str, seat: Take) -> None:
    outer = seat().attach(shell)
    with home.background("exec", "-b", shell, "--", "sh -c 'echo begun; exec sleep 1000'; echo not this") as command:
        outer.see(line(b"begun"))
        outer.type(b"\x03")
        output, said = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, output.rstrip(), said) == (130, b"begun", b"")  # bash prints a newline after SIGINT
    outer.type(b"echo still $((6*7))\r").see(line(b"still 42"))


@pytest.mark.soak(part="timing")
def test_a_user_at_the_terminal_can_suspend_and_continue_an_exec(home: Home, shell: str, seat: Take) -> None:
    outer = seat().attach(shell)
    # The loop starts no processes: Ctrl-Z may stop a new child before its exec, and then its parent waits for ever.
    with home.background("exec", "-b", shell, "--", "sh -c 'echo begun; until [ -e go ]; do :; done'") as command:
        outer.see(line(b"begun"))
        outer.type(b"\x1a")
        command.communicate(timeout=PATIENCE_S)
    home.must("run", "-b", shell, "touch", "/tmp/go")
    outer.prompt().type(b"fg; echo came ba''ck\r").see(line(b"came back"))


def test_an_exec_is_refused_with_the_name_of_the_program_in_the_foreground(home: Home, shell: str, seat: Take) -> None:
    outer = seat().attach(shell)
    with collecting() as row:
        for program, leave in (("vi /tmp/x", b":q\r"), ("less /etc/services", b"q"), ("sh -c 'read x'", b"\r")):
            with row(program):
                outer.type(program.encode() + b"\r")

                def runs(name: str = program.split()[0]) -> bool:
                    return name in home.must("run", "-b", shell, "ps", "-eo", "args").stdout

                wait_until(runs, f"{program} runs")
                found = home.cli("exec", "-b", shell, "--json", "--wait-prompt", "0.3", "--", "echo never").json()
                assert (found["exit"], found["by"], found["ended"], found["output"]) == (125, "waypoint", False, "")
                assert "in the foreground" in found["said"]
                assert program.replace("'", "") in found["said"]
                assert runs()
                outer.type(leave)
                assert home.must("exec", "-b", shell, "--wait-prompt", "60", "--", "echo on").stdout == "on\n"


def test_an_exec_is_refused_with_the_name_of_the_program_that_replaced_the_shell(
    home: Home, shell: str, seat: Take
) -> None:
    outer = seat().attach(shell)
    outer.type(b"exec env PYTHON_BASIC_REPL=1 python3 -q\r").see(b">>> ")
    done = home.cli("exec", "-b", shell, "--wait-prompt", "60", "--", "echo never")
    assert (done.code, done.stdout) == (125, "")
    assert "replaced by another program: python3 -q" in done.stderr
    outer.type(b"print(6*7)\r").see(line(b"42"))
    outer.type(b"exit(3)\r")
    assert outer.left() == 3


def test_a_command_that_replaces_the_shell_and_ends_ends_the_session(home: Home, person: Person) -> None:
    """Python ends at once, as its stdin is /dev/null."""
    for text in ("exec python3 -q", "exec sleep 0.3"):
        with session(home, person.name) as branch:
            found = home.cli("exec", "-b", branch, "--json", "--", text).json()
            assert (found["exit"], found["by"], found["ended"]) == (0, "command", True)


def test_zsh_without_startup_files_skips_its_first_start_questions(home: Home, zsh_person: Person) -> None:
    (zsh_person.home / ".zshrc").rename(zsh_person.home / "kept")
    try:
        with session(home, zsh_person.name) as branch:
            assert home.must("exec", "-b", branch, "--", "echo here").stdout == "here\n"
    finally:
        (zsh_person.home / "kept").rename(zsh_person.home / ".zshrc")
