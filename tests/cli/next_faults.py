"""Situations in which something has gone wrong, or is in the way, and a next step is advised: one case for each."""

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pexpect
import pytest

from tests.chaos import victims
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client.link import ask
from waypoint.linux.tasks import pidfd
from waypoint.model.errors import WaypointError

Meet = Callable[[Home], AbstractContextManager[str]]
"""Brings a home into the situation, and gives what was printed about it. What is in the way is taken out of it at the
end of the `with`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`advice`, `fill`, `follow`, `gives_up`: as in next_rows.py. `shows`: words that the last command followed prints.
    `needs`: words of `requires`. `makes`: branches whose sessions are ended afterwards.
    """

    name: str
    advice: str
    meet: Meet
    fill: Mapping[str, str] = field(default_factory=dict)
    follow: str = ""
    gives_up: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    shows: str = ""
    needs: tuple[str, ...] = ()


def refused(*words: str, before: tuple[tuple[str, ...], ...] = ()) -> Meet:
    """A command that is refused, after the commands `before`."""

    @contextlib.contextmanager
    def meet(home: Home) -> Iterator[str]:
        for line in before:
            home.must(*line)
        done = home.cli(*words)
        assert done.code not in (0, 1)
        yield done.stderr

    return meet


# --- parts that are killed


def kill(home: Home, part: str) -> None:
    pid = victims.only_pid(home, part)
    ended = pidfd.open(pid)
    os.kill(pid, signal.SIGKILL)
    assert pidfd.wait_ended(ended, PATIENCE_S)
    os.close(ended)


def kill_daemon(home: Home) -> None:
    kill(home, "daemon")


def cut(*words: str, by: Callable[[Home], None] = kill_daemon, input: bool = False) -> Meet:
    """A command that has begun to print when `by` strikes."""

    @contextlib.contextmanager
    def meet(home: Home) -> Iterator[str]:
        with subprocess.Popen(
            home.argv(*words),
            env=home.env,
            stdin=subprocess.PIPE if input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as command:
            assert command.stdout is not None
            assert os.read(command.stdout.fileno(), 1)
            by(home)
            said = command.communicate(timeout=PATIENCE_S)[1].decode()
            assert command.returncode not in (0, 1), said
        yield said

    return meet


@contextlib.contextmanager
def stopped_under_a_command(home: Home) -> Iterator[str]:
    wait = "echo on; until [ -e /srv/go ]; do sleep 0.1; done; echo went-$((40 + 2))"
    with cut("exec", "-b", "other", "--", wait, by=stop)(home) as said:
        yield said
    home.must("run", "-b", "other", "--", "touch", "/srv/go")
    home.must("exec", "-b", "other", "--", "rm /srv/go")  # waits for the command, which went on
    assert "went-42" in home.must("logs", "other").stdout


def stop(home: Home) -> None:
    home.must("daemon", "stop")


@contextlib.contextmanager
def run_on_a_terminal(home: Home) -> Iterator[str]:
    program, *words = home.argv("run", "-t", "-b", "main", "--", "sh", "-c", "echo on; exec sleep 1002")
    terminal = pexpect.spawn(program, words, env=home.env, encoding="utf-8", timeout=PATIENCE_S, dimensions=(50, 200))
    terminal.expect("on\r\n")
    kill(home, "daemon")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    yield (terminal.before or "").replace("\r\n", "\n")


@contextlib.contextmanager
def asked_while_it_stands(home: Home, part: str, *words: str) -> Iterator[str]:
    """`part` is killed when the command's request has come to the launcher, which stands still."""
    launcher = victims.only_pid(home, "launcher")
    number = re.search(r"main\((\d+), ", Path(f"/proc/{launcher}/cmdline").read_text())
    assert number
    of_launcher = pidfd.open(launcher)
    control = pidfd.getfd(of_launcher, int(number[1]))
    os.kill(launcher, signal.SIGSTOP)
    try:
        with home.background(*words) as command:
            poll = select.poll()
            poll.register(control, select.POLLIN)
            assert poll.poll(PATIENCE_S * 1000)
            os.close(control)  # or its other end would not notice that the launcher is gone
            kill(home, part)
            with contextlib.suppress(ProcessLookupError):
                os.kill(launcher, signal.SIGCONT)
            said = command.communicate(timeout=PATIENCE_S)[1].decode()
            assert command.returncode == 125, said
    finally:
        with contextlib.suppress(ProcessLookupError):
            pidfd.send_signal(of_launcher, signal.SIGCONT)
        os.close(of_launcher)
    yield said


@contextlib.contextmanager
def without_a_lock(home: Home) -> Iterator[str]:
    """A folder where the supervisor's lock should be."""
    home.must("daemon", "stop")
    lock = home.runtime / "supervisor.lock"
    wait_until(lambda: not victims.pids(home, "supervisor"), "the supervisor has ended")
    lock.unlink()
    lock.mkdir()
    try:
        done = home.cli("ps")
        assert done.code == 125
        yield done.stderr
    finally:
        lock.rmdir()


# --- what is in the way


@contextlib.contextmanager
def a_job_that_runs(home: Home) -> Iterator[str]:
    ask(str(home.path), "POST", "/v1/jobs", {"kind": "doctor"})
    with pytest.raises(WaypointError, match="of this kind runs already") as caught:
        ask(str(home.path), "POST", "/v1/jobs", {"kind": "doctor"})
    yield str(caught.value)
    started = ask(str(home.path), "POST", "/v1/jobs", {"kind": "doctor"})
    assert isinstance(started, dict)
    ask(str(home.path), "POST", f"/v1/jobs/{started['job']['id']}/cancel")


@contextlib.contextmanager
def without_hot_captures(home: Home) -> Iterator[str]:
    hot, away = home.path / "hot", home.path / "away"
    hot.rename(away)
    done = home.cli("checkpoint", "lost", "-b", "main")
    assert done.code == 125
    assert f"cannot capture into {hot}: the folder is gone" in done.stderr
    yield done.stderr
    home.must("checkpoint", "into-a-new-one", "-b", "main")
    home.must("daemon", "stop")
    for one in away.iterdir():
        one.rename(hot / one.name)
    away.rmdir()


@contextlib.contextmanager
def asked_inside(home: Home) -> Iterator[str]:
    done = home.cli("run", "-b", "main", "--", *home.argv("--home", str(home.path), "ps"))
    assert done.code == 3
    yield done.stderr


@contextlib.contextmanager
def another_kind_of_shell(home: Home) -> Iterator[str]:
    for name in ("bash", "zsh"):
        home.must("shell", f"of-{name}", "-d", "--shell", name)
        home.must("exec", "-b", f"of-{name}", "--", f"kind={name}")
    home.must("checkpoint", "in-zsh", "-b", "of-zsh")
    done = home.cli("restore", "in-zsh", "-b", "of-bash", "--only", "shell")
    assert done.code == 5
    yield done.stderr
    assert home.must("exec", "-b", "of-bash", "--", "echo $kind").stdout == "zsh\n"


@contextlib.contextmanager
def a_shell_that_ends_at_once(home: Home) -> Iterator[str]:
    home.must("shell", "ends", "-d", "--user", "root", "--shell", "bash")
    home.must("exec", "-b", "ends", "--", "cp ~/.bashrc /srv/rc; echo precious > /srv/file; echo exit 3 > ~/.bashrc")
    home.must("checkpoint", "ends-at-once", "-b", "ends", "--tier", "files")
    home.must("exec", "-b", "ends", "--", "here=1; rm /srv/file")
    done = home.cli("restore", "ends-at-once", "-b", "ends")
    assert done.code == 125
    assert "the session's shell has ended" in done.stderr
    yield done.stderr
    assert home.must("exec", "-b", "ends", "--", "cat /srv/file; echo $here").stdout == "precious\n1\n"


@contextlib.contextmanager
def a_link_in_place_of_run(home: Home) -> Iterator[str]:
    home.must("shell", "linked", "-d", "--user", "root")
    home.must("exec", "-b", "linked", "--", "echo precious > /srv/file")
    home.must("checkpoint", "before-link", "-b", "linked")
    home.must("exec", "-b", "linked", "--", "mv /run /run.away && ln -s /run.away /run")
    home.must("stop", "linked")
    done = home.cli("shell", "linked", "-d")
    assert done.code == 2
    yield done.stderr
    home.must("shell", "unlinked", "-d")
    assert home.must("exec", "-b", "unlinked", "--", "cat /srv/file").stdout == "precious\n"


NESTED = "unshare -Ur sleep 1004 & until pgrep -fx 'sleep 1004'; do :; done; here=nested"
LIVE = ("shell", "nested", "-d", "--allow", "userns")
STARTED = "the session goes on, with all that runs in it: 'waypoint ps' starts a new daemon"

CASES = (
    Case(
        name="a command with input",
        advice="see what it has printed: {}",
        meet=cut("exec", "-i", "-b", "other", "--", "echo on-$((40 + 2)); read x", input=True),
        shows="on-42",
    ),
    Case(
        name="a process",
        advice="see whether it still runs, before you start it again: {}",
        meet=cut("run", "-b", "main", "--", "sh", "-c", "echo on; exec sleep 1001"),
        shows="sleep 1001",
    ),
    Case(
        name="a process on a terminal",
        advice="see whether it still runs, before you start it again: {}",
        meet=run_on_a_terminal,
    ),
    Case(
        name="a daemon that is stopped under a command",
        advice=STARTED,
        meet=stopped_under_a_command,
        shows="other ",
    ),
    Case(
        name="a daemon that is stopped under a log",
        advice=STARTED,
        meet=cut("logs", "-f", "main", by=stop),
        shows="main ",
    ),
    Case(
        name="a fork whose daemon dies",
        advice="see what became of it: {}",
        meet=lambda home: asked_while_it_stands(home, "daemon", "fork", "noted", "never-told"),
        shows="NUMBER",
    ),
    Case(
        name="a program whose launcher dies",
        advice="try again",
        meet=lambda home: asked_while_it_stands(home, "launcher", "run", "-b", "main", "--", "true"),
        follow="waypoint run -b main -- true",
    ),
    Case(
        name="a restored shell that does not answer",
        advice="try again",
        meet=a_shell_that_ends_at_once,
        makes=("ends",),
    ),
    Case(
        name="a daemon that does not start",
        advice="see the daemon's log: {}",
        meet=without_a_lock,
        shows="cannot start: [Errno 21] Is a directory",
    ),
    Case(
        name="a job of the same kind",
        advice="'waypoint events' shows when it has ended; try again then",
        meet=a_job_that_runs,
        follow="until waypoint events | grep 'doctor .* done'; do :; done",
    ),
    Case(
        name="the folder of captures",
        advice="put it back, or let the next daemon make an empty one: {}",
        meet=without_hot_captures,
    ),
    Case(
        name="the command of the machine, inside",
        advice="run this outside",
        meet=asked_inside,
        follow="waypoint ps",
        shows="main ",
    ),
    Case(
        name="a shell of another kind",
        advice="restore all of it",
        meet=another_kind_of_shell,
        follow="waypoint restore in-zsh -b of-bash",
        gives_up=("of-bash",),
        makes=("of-bash", "of-zsh"),
        needs=("zsh",),
    ),
    Case(
        name="a link in place of /run",
        advice="'waypoint log {}' lists older captures: waypoint shell NEW --from CAPTURE",
        meet=a_link_in_place_of_run,
        fill={"NEW": "unlinked", "CAPTURE": "before-link"},
        makes=("unlinked",),
    ),
    Case(
        name="processes that cannot be kept",
        advice="{}; or lose what some have in memory ({}), and keep the rest: {}",
        meet=refused("restore", "noted", "-b", "nested", before=(LIVE, ("exec", "-b", "nested", "--", NESTED))),
        gives_up=("nested",),
        makes=("nested",),
        needs=("userns",),
    ),
    Case(
        name="bytes that are no text",
        advice="write it in UTF-8; 'waypoint exec' takes other bytes in a command of several words",
        meet=refused("exec", "--", "echo \udcff"),
        follow="waypoint exec -- printf '%s' \"$(printf '\\377')\" | od -An -tx1",
        shows="ff",
    ),
)
