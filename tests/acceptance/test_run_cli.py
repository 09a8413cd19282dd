"""`waypoint run`: a new process in the session, with separate streams or a terminal of its own."""

import hashlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import session
from tests.collecting import collecting
from tests.homes import Completed, Home
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.privileged
Take = Callable[..., Seat]
MIB = 1 << 20


@pytest.fixture(scope="module")
def main(home: Home, person: Person) -> Iterator[str]:
    with session(home, person.name, "--cwd", "/tmp") as name:
        yield name


class Run:
    """Calls `waypoint run` in the session of this file: `run("ls")`."""

    def __init__(self, home: Home, branch: str) -> None:
        self.home = home
        self.branch = branch

    def argv(self, *words: str) -> list[str]:
        return self.home.argv("run", "-b", self.branch, *words)

    def __call__(self, *words: str, stdin: bytes | None = None, **variables: str) -> Completed:
        return self.home.cli("run", "-b", self.branch, *words, stdin=stdin, env=variables)

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        return subprocess.Popen(self.argv(*words), env=self.home.env, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture
def run(home: Home, main: str) -> Run:
    return Run(home, main)


def read_line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout
    assert select.select([process.stdout], [], [], PATIENCE_S)[0], "the process prints nothing"
    return process.stdout.readline()


def test_stdout_and_stderr_are_separate(run: Run) -> None:
    done = run("sh", "-c", "echo out; echo err >&2; printf 'more\\r\\nout'; printf 'more err' >&2")
    assert (done.stdout, done.stderr, done.code) == ("out\nmore\r\nout", "err\nmore err", 0)


def test_all_bytes_pass_on_all_streams(run: Run) -> None:
    content = os.urandom(5 * MIB) + bytes(range(256))
    done = subprocess.run(
        run.argv("-i", "--", "tee", "/dev/stderr"), env=run.home.env, input=content, capture_output=True, check=True
    )
    digests = [hashlib.sha256(stream).digest() for stream in (done.stdout, done.stderr, content)]
    assert digests == [digests[2]] * 3


def test_input_and_output_are_passed_line_by_line(run: Run) -> None:
    with run.start("-i", "--", "sed", "-u", "s/^/got /") as process:
        assert process.stdin
        for number in range(20):
            process.stdin.write(b"line %d\n" % number)
            process.stdin.flush()
            assert read_line(process) == b"got line %d\n" % number
        process.stdin.close()
        process.stdin = None
        assert process.wait(PATIENCE_S) == 0


def test_a_hundred_megabytes_arrive_at_the_speed_of_the_reader(run: Run) -> None:
    with run.start("--", "head", "-c", str(100 * MIB), "/dev/zero") as process:
        assert process.stdout
        assert process.stdout.read(10) == b"\0" * 10
        assert process.poll() is None
        size = 10
        while piece := process.stdout.read(MIB):
            size += len(piece)
        assert process.wait(PATIENCE_S) == 0
    assert size == 100 * MIB


def test_without_i_stdin_is_empty_and_with_i_it_need_not_be_read(run: Run) -> None:
    assert run("sh", "-c", "readlink /proc/self/fd/0; cat", stdin=b"not this").stdout == "/dev/null\n"
    assert run("-i", "--", "true", stdin=b"x" * (5 * MIB)).code == 0


def test_closing_one_stream_does_not_end_the_run(run: Run) -> None:
    done = run("sh", "-c", "exec >&-; sleep 0.1; echo still here >&2; exit 4")
    assert (done.stdout, done.stderr, done.code) == ("", "still here\n", 4)


def test_run_returns_although_a_child_of_the_process_still_runs(run: Run) -> None:
    done = run("sh", "-c", "sleep 3456 & echo started")
    assert (done.stdout, done.code) == ("started\n", 0)
    assert run("pkill", "-f", "sleep 3456").code == 0


def test_a_background_process_outlives_the_run(run: Run) -> None:
    run(
        "sh", "-c", "setsid sh -c 'until [ -e /tmp/stop-it ]; do sleep 0.02; done; echo ended >/tmp/ended' </dev/null &"
    )
    assert run("test", "-e", "/tmp/ended").code == 1
    run("touch", "/tmp/stop-it")
    wait_until(lambda: run("cat", "/tmp/ended").stdout == "ended\n", "the background process has continued")


def test_the_exit_code_is_that_of_the_process(run: Run) -> None:
    with collecting() as row:
        for code in (0, 1, 2, 77, 124, 125, 126, 127, 255):
            with row(code):
                assert run("sh", "-c", f"exit {code}").code == code
        for words, code, said in (
            (["no-such-program"], 127, "no-such-program"),
            (["/no/such/program"], 127, "/no/such/program"),
            (["/etc/passwd"], 126, "/etc/passwd"),
            (["/"], 126, "/"),
            ([""], 127, ""),
            (["exit", "5"], 127, "exit"),
            (["."], 126, "."),
        ):
            with row(words):
                done = run("--", *words)
                assert (done.code, done.stdout) == (code, "")
                assert said in done.stderr


def test_a_program_is_preferred_to_a_builtin_of_its_name(run: Run) -> None:
    assert run("--", "printf", r"\x41\n").stdout == "A\n"  # the builtin of dash prints \x41
    assert run("--", "sh", "-c", "exit 5").code == 5


def test_signals_to_the_client_reach_the_process(run: Run) -> None:
    with collecting() as row:
        for name in ("HUP", "INT", "QUIT", "TERM"):
            text = f"trap 'echo caught {name}; exit 9' {name}; echo begun; while :; do sleep 0.02; done"
            with row(name), run.start("--", "sh", "-c", text) as process:
                assert read_line(process) == b"begun\n"
                process.send_signal(signal.Signals[f"SIG{name}"])
                assert read_line(process) == f"caught {name}\n".encode()
                assert process.wait(PATIENCE_S) == 9


def test_a_process_ended_by_a_signal_gives_128_plus_its_number(run: Run) -> None:
    assert run("sh", "-c", "kill -KILL $$").code == 137
    with run.start("--", "sleep", "1000") as process:
        wait_until(lambda: run("pgrep", "-x", "sleep").code == 0, "it runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143


def test_arguments_arrive_unchanged(run: Run) -> None:
    words = ["a b", "", "$HOME", "*", "it's", '"', "line\nbreak", "\\", "--json", "ä中\N{GRINNING FACE}"]
    assert run("--", "printf", "%s\\0", *words).stdout.split("\0")[:-1] == words


def test_the_process_has_the_user_and_environment_of_the_session(run: Run, person: Person) -> None:
    found = dict(line.split("=", 1) for line in run("env", SECRET="hidden").stdout.splitlines())
    expected = {"USER": person.name, "HOME": str(person.home), "WAYPOINT_BRANCH": run.branch, "SHELL": "/bin/bash"}
    assert {name: found.get(name) for name in expected} == expected
    assert "SECRET" not in found
    assert run("id", "-un").stdout == f"{person.name}\n"


def test_the_process_starts_in_the_folder_of_the_session_or_in_cwd(run: Run) -> None:
    assert run("pwd").stdout == "/tmp\n"
    assert run("--cwd", "/usr/lib", "pwd").stdout == "/usr/lib\n"
    run.home.must("exec", "-b", run.branch, "--", "cd /etc")
    assert run("pwd").stdout == "/tmp\n"
    done = run("--cwd", "/no/such/folder", "pwd")
    assert done.code == 125
    assert "/no/such/folder" in done.stderr


def test_the_streams_can_be_opened_as_dev_stdin_stdout_and_stderr(run: Run) -> None:
    done = run("-i", "--", "sh", "-c", "cat /dev/stdin >/dev/stdout; echo err >/dev/stderr", stdin=b"in\n")
    assert (done.stdout, done.stderr, done.code) == ("in\n", "err\n", 0)


def test_the_shell_and_the_process_see_each_other(run: Run) -> None:
    with run.start("--", "sleep", "2345") as process:
        wait_until(lambda: run("pgrep", "-f", "sleep 2345").code == 0, "it runs")
        run.home.must("exec", "-b", run.branch, "--", "pkill -f 'sleep 2345'")
        assert process.wait(PATIENCE_S) == 143


def test_with_t_the_process_has_a_terminal_of_the_size_of_the_clients(run: Run, seat: Take) -> None:
    outer = seat(27, 93)
    outer.type(f"waypoint run -b {run.branch} -it -- bash --norc -i\r".encode()).prompt()
    outer.type(b"tty; stty size; echo $TERM; ps -o tty= -p $$\r")
    outer.see(rb"/dev/pts/[1-9]\d*\r\n27 93\r\nxterm-256color\r\npts/[1-9]")
    outer.terminal.setwinsize(40, 130)
    outer.type(b"stty size\r").see(rb"40 130\r\n")
    outer.type(b"exit 5\r")
    assert outer.left() == 5


def test_with_t_job_control_works(run: Run, seat: Take) -> None:
    outer = seat()
    before = outer.modes()
    outer.type(f"waypoint run -b {run.branch} -it -- bash --norc -i\r".encode()).prompt()
    outer.type(b"sh -c 'echo be\"\"gun; exec sleep 1000'\r").see(rb"begun\r\n")
    outer.type(b"\x1a").see(rb"Stopped")
    outer.prompt().type(b"fg\r").see(rb"exec sleep 1000'\r\n")
    outer.type(b"\x03").prompt().type(b"echo status $?\r").see(rb"status 130\r\n")
    outer.type(b"(exit 6)\r").see(rb"\(exit 6\)\r\n")
    outer.prompt().type(b"\x04")
    assert outer.left() == 6
    assert outer.modes() == before


def test_with_t_a_program_that_ends_at_once_has_shown_all_its_output(run: Run, seat: Take) -> None:
    outer = seat()
    lines = b"".join(b"%d\r\n" % number for number in range(1, 51))
    for _ in range(10):
        shown = outer.outside(f"waypoint run -b {run.branch} -t -- sh -c 'seq 50; exit 3'; echo status $?")
        assert lines in shown
        assert shown.endswith(b"status 3\r\n")


def test_with_t_a_killed_client_hangs_up_the_terminal(run: Run, seat: Take) -> None:
    outer = seat()
    text = "trap 'echo hung up >/tmp/hung-up; exit' HUP; echo be''gun; while :; do sleep 0.02; done"
    outer.type(f'waypoint run -b {run.branch} -it -- sh -c "{text}"\r'.encode()).see(rb"begun\r\n")
    os.kill(outer.client_pid(), signal.SIGKILL)
    wait_until(lambda: run("cat", "/tmp/hung-up").stdout == "hung up\n", "the process has got SIGHUP")


def test_wrong_usage_gives_2_and_an_unknown_branch_125(home: Home) -> None:
    with collecting() as row:
        for args in ([], ["--"], ["--nosuch", "x"], ["-b", "bad name", "--", "true"]):
            with row(args):
                done = home.cli("run", *args)
                assert (done.code, done.stdout) == (2, "")
                assert done.stderr
    done = home.cli("run", "-b", "never-was", "true")
    assert (done.code, done.stdout) == (125, "")
    assert "never-was" in done.stderr
    assert "next: " in done.stderr
