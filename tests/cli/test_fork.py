"""`waypoint fork`, with and without a command."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answers import texts
from tests.cli.conftest import Spawn, exit_status
from tests.cli.test_checkpoint import TRACED
from tests.collecting import collecting
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.cli.fast.in_each import Lines
from waypoint.model.outcomes import NOT_RUN

needs_sessions = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture
def ready(home: Home, branch: str) -> Iterator[str]:
    """The name of a checkpoint of a shell with a variable. At the end, its forks (`<name>...`) are stopped."""
    home.must("exec", "-b", branch, "--", "mine=42; cd /usr/lib")
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    yield f"{branch}-c"
    live = [one["branch"] for one in home.must("ps", "--json").json() if one["branch"].startswith(f"{branch}-c")]
    if live:
        home.must("stop", *live, "--discard")


def live_branches(home: Home) -> set[str]:
    return {one["branch"] for one in home.must("ps", "--json").json()}


AGAIN = ("respawned", "offered", "lost")  # fields of tier `respawn`


class TestBranches:
    pytestmark = needs_sessions

    def test_forks_are_printed_one_a_line_and_are_live(self, home: Home, ready: str) -> None:
        done = home.must("fork", ready, f"{ready}-a", f"{ready}-b")
        assert done.stdout == f"{ready}-a\n{ready}-b\n"
        for name in (f"{ready}-a", f"{ready}-b"):
            found = home.must("exec", "-b", name, "--", "echo $mine $PWD $WAYPOINT_BRANCH").stdout
            assert found.split()[:2] == ["42", "/usr/lib"]
            home.must("exec", "-b", name, "--", f"mine={name}")
        assert home.must("exec", "-b", f"{ready}-a", "--", "echo $mine").stdout == f"{ready}-a\n"

    def test_a_number_of_forks_is_named_after_the_checkpoint(self, home: Home, ready: str) -> None:
        assert home.must("fork", ready, "-n", "2").stdout == f"{ready}-1\n{ready}-2\n"

    def test_what_a_fork_of_a_live_branch_cannot_keep_is_reported_on_stderr(
        self, home: Home, ready: str, branch: str
    ) -> None:
        assert home.must("fork", branch, f"{ready}-whole").stderr == ""
        assert home.must("exec", "-b", branch, "--", TRACED).stdout.endswith("yes")
        done = home.must("fork", branch, f"{ready}-a", f"{ready}-b")
        assert done.stdout == f"{ready}-a\n{ready}-b\n"
        [told] = texts(home.must("show", branch, "--json").json()["degraded"])
        assert told.startswith("without its processes: ")
        assert done.stderr.startswith(f"degraded: {told}\n")
        as_json = home.must("fork", branch, f"{ready}-j", "--json")
        assert as_json.stderr == done.stderr  # the JSON records do not contain this warning
        assert home.must("fork", branch, f"{ready}-c", "--", "true").stderr == done.stderr

    def test_what_a_checkpoint_lacks_is_reported_for_its_forks(self, home: Home, ready: str, branch: str) -> None:
        assert home.must("exec", "-b", branch, "--", TRACED).stdout.endswith("yes")
        told = home.must("checkpoint", f"{ready}.p", "-b", branch).stderr
        assert home.must("fork", f"{ready}.p", f"{ready}-a").stderr.startswith(told)
        assert home.must("restore", f"{ready}.p", "--new", f"{ready}-b").stderr.count(told) == 1
        session = home.must("restore", f"{ready}.p", "--new", f"{ready}-j", "--json").json()
        assert [f"degraded: {text}\n" for text in texts(session["degraded"])] == [told]

    def test_a_prefix_names_the_forks(self, home: Home, ready: str) -> None:
        assert home.must("fork", ready, "-n2", "--prefix", f"{ready}.p").stdout == f"{ready}.p-1\n{ready}.p-2\n"

    def test_fork_json_is_a_list_of_records(self, home: Home, ready: str) -> None:
        found = home.must("fork", ready, "-n", "2", "--json").json()
        assert [set(one) for one in found] == [{"branch", "pid", "ms", "degraded", "ports", *AGAIN, *NOT_RUN}] * 2
        assert [(one["branch"], one["exit"]) for one in found] == [(f"{ready}-1", None), (f"{ready}-2", None)]
        for one in found:
            os.kill(one["pid"], 0)
            assert one["ms"] > 0

    def test_a_fork_of_a_live_branch_has_its_present_state(self, home: Home, branch: str, ready: str) -> None:
        home.must("exec", "-b", branch, "--", "mine=now")
        home.must("fork", branch, f"{ready}-a")
        assert home.must("exec", "-b", f"{ready}-a", "--", "echo $mine").stdout == "now\n"

    def test_all_forks_are_made_or_none(self, home: Home, branch: str, ready: str) -> None:
        before = live_branches(home)
        done = home.cli("fork", ready, f"{ready}-a", branch)
        assert (done.code, done.stdout) == (4, "")
        assert live_branches(home) == before

    def test_wrong_forks_start_no_session(self, home: Home, ready: str) -> None:
        before = live_branches(home)
        with collecting() as row:
            for words in (
                *([ready], [ready, "x", "-n", "2"], [ready, "-n", "1000"], [ready, "x", "--prefix", "p"]),
                *([ready, "x", "x"], [ready, "bad name"], ["nosuch", "x"], [ready, "--", "true"]),
                [ready, "x", "--", "\udcff"],
            ):
                with row(words):
                    done = home.cli("fork", *words)
                    assert (done.code, done.stdout) == (2, "")
        assert live_branches(home) == before


class TestCommand:
    pytestmark = needs_sessions

    def test_each_line_of_output_begins_with_the_branch(self, home: Home, ready: str) -> None:
        done = home.must("fork", ready, f"{ready}-a", f"{ready}-long", "--", "echo $mine {i} {branch}; printf end")
        assert sorted(done.stdout.splitlines()) == [
            f"{ready}-a    | 42 1 {ready}-a",
            f"{ready}-a    | end",
            f"{ready}-long | 42 2 {ready}-long",
            f"{ready}-long | end",
        ]
        assert done.stdout.endswith("end\n")

    def test_several_words_are_quoted(self, home: Home, ready: str) -> None:
        done = home.must("fork", ready, "-n", "1", "--", "printf", "%s|", "$mine", "{i} it's", "")
        assert done.stdout == f"{ready}-1 | $mine|1 it's||\n"

    def test_lines_of_different_forks_are_never_mixed(self, home: Home, ready: str) -> None:
        done = home.must("fork", ready, "-n", "3", "--", "for x in $(seq 2000); do echo {i}-$x-{i}; done")
        lines = done.stdout.splitlines()
        assert len(lines) == 6000
        for number in (1, 2, 3):
            own = [line for line in lines if line.startswith(f"{ready}-{number} | ")]
            assert own == [f"{ready}-{number} | {number}-{x}-{number}" for x in range(1, 2001)]

    def test_the_commands_in_forks_run_at_the_same_time(self, home: Home, branch: str, tmp_path: Path) -> None:
        """Each command waits for the other one at a shared FIFO."""
        tmp_path.chmod(0o755)
        os.mkfifo(tmp_path / "fifo")
        home.must("shell", f"{branch}-s", "-d", "--bind", f"{tmp_path}:/mnt")
        command = "if [ {i} = 1 ]; then echo met >/mnt/fifo; else cat /mnt/fifo; fi"
        done = home.must("fork", f"{branch}-s", "-n", "2", "--", command)
        assert done.stdout == f"{branch}-s-2 | met\n"
        home.must("stop", f"{branch}-s", f"{branch}-s-1", f"{branch}-s-2", "--discard")

    def test_a_failed_command_is_reported_with_exit_status_1(self, home: Home, ready: str) -> None:
        done = home.cli("fork", ready, "-n", "2", "--", "echo {i}; [ {i} = 1 ] || (exit 3)")
        assert done.code == 1
        assert sorted(done.stdout.splitlines()) == [f"{ready}-1 | 1", f"{ready}-2 | 2"]
        assert done.stderr == f"waypoint: {ready}-2: the command ended with status 3\n"
        assert {f"{ready}-1", f"{ready}-2"} <= live_branches(home)

    def test_fork_json_has_the_output(self, home: Home, ready: str) -> None:
        done = home.cli("fork", ready, "-n", "2", "--json", "--", "printf 'a {i}\\n'; (exit {i})")
        assert done.code == 1
        found = [(one["branch"], one["exit"], one["output"]) for one in done.json()]
        assert found == [(f"{ready}-1", 1, "a 1\n"), (f"{ready}-2", 2, "a 2\n")]
        assert {"pid", "ms"} <= set(done.json()[0])

    def test_fork_json_has_bytes_that_are_not_text_in_base64(self, home: Home, ready: str) -> None:
        [found] = home.must("fork", ready, "-n", "1", "--json", "--", r"printf '\377'").json()
        assert (found["output"], found["output_base64"]) == ("\ufffd", "/w==")

    @pytest.mark.soak(part="faults")
    def test_fork_json_has_failures_of_waypoint(self, home: Home, ready: str) -> None:
        home.must("shell", f"{ready}-s", "-d", "--", "sleep", "1000")  # this session runs no shell
        done = home.cli("fork", f"{ready}-s", f"{ready}-a", "--json", "--", "true")
        assert done.code == 1
        [found] = done.json()
        assert (found["exit"], found["output"]) == (125, "")
        assert found["said"] in done.stderr
        assert (found["error"]["on"], found["error"]["code"]) == (f"branch {ready}-a", "shell-busy")
        assert found["said"].endswith(f"next: {found['error']['next']}")

    def test_an_interrupt_reaches_the_commands_in_all_forks(self, home: Home, ready: str) -> None:
        with home.background("fork", ready, "-n", "2", "--", "echo begun; sleep 60") as process:
            assert process.stdout is not None
            seen = b""
            while seen.count(b"begun") < 2:
                seen += os.read(process.stdout.fileno(), 4096)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 1
            assert process.stderr is not None
            assert process.stderr.read().count(b"status 130") == 2
        for number in (1, 2):
            assert home.must("exec", "-b", f"{ready}-{number}", "--", "echo $mine").stdout == "42\n"

    def test_a_closed_pipe_ends_the_commands_in_forks(self, home: Home, ready: str) -> None:
        words = home.argv("fork", ready, "-n", "2", "--", "yes")
        done = subprocess.run(
            ["/bin/bash", "-c", '"$@" | head -n 1; echo ${PIPESTATUS[0]}', "-", *words],
            env=home.env,
            capture_output=True,
            check=True,
            timeout=PATIENCE_S,
        )
        assert re.fullmatch(rb"\S+ \| y\n141\n", done.stdout)
        wait_until(
            lambda: home.must("exec", "-b", f"{ready}-1", "--", "echo $mine").stdout == "42\n",
            "the shell accepts commands again",
        )

    def test_branches_are_coloured_on_a_terminal_only(self, home: Home, ready: str, on_terminal: Spawn) -> None:
        terminal = on_terminal("fork", ready, "-n", "1", "--", "echo seen")
        assert exit_status(terminal) == 0
        assert re.search(rb"\x1b\[\d+m\S+-1 \|\x1b\[0m seen\r\n", terminal.before)
        plain = on_terminal("fork", ready, f"{ready}-p", "--", "echo seen", env={"NO_COLOR": "1"})
        assert exit_status(plain) == 0
        assert plain.before == f"{ready}-p | seen\r\n".encode()


def test_only_whole_lines_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    lines = Lines(["a", "long"], coloured=False, on_break=lambda: None)
    for branch, data in [("a", b"one "), ("long", b"other\nthird"), ("a", b"line\n\nlast"), ("long", b""), ("a", b"")]:
        lines(branch, data)
    assert capfd.readouterr().out == "long | other\na    | one line\na    | \nlong | third\na    | last\n"
    lines("a", b"")
    assert capfd.readouterr().out == ""
