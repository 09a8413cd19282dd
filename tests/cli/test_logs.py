"""`waypoint logs` of sessions whose daemon dies, and of those that have ended."""

import errno
import os

import pytest

from tests.chaos import victims
from tests.cli.test_exec import started
from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


def test_logs_go_on_over_daemons_that_die_without_a_loss_and_nothing_twice() -> None:
    branch = "main"
    with open_home("logs") as home:
        home.must("shell", branch, "-d")
        home.must("exec", "-b", branch, "--", "echo be''gun; seq 1 40000")
        with started(home, "logs", "-f", branch) as process:
            assert process.stdout is not None
            seen = bytearray()

            def read_to(word: bytes) -> None:
                while word not in seen:
                    seen.extend(os.read(process.stdout.fileno(), 1 << 16))

            read_to(b"begun")
            for number in range(4):
                victims.end(Client(home.path).status().pid)
                home.must("exec", "-b", branch, "--", f"echo then-{number}$((1 + 1)); seq 1 {20000 * number}")
                read_to(f"then-{number}2".encode())
            home.must("stop", branch, "--checkpoint", f"{branch}-kept")
            seen += process.communicate(timeout=PATIENCE_S)[0]
            assert process.returncode == 0
        kept = home.must("logs", branch).raw
        lines = bytes(seen).splitlines()
        assert [line for line in lines if b"then-" in line and b"2" in line[-1:]] == [
            b"then-%d2" % number for number in range(4)
        ]
        assert bytes(seen).endswith(kept[len(kept) - 100_000 :])


def test_logs_of_a_session_that_has_ended_are_those_that_were_kept(home: Home, branch: str) -> None:
    name = f"{branch}-parked"
    home.must("exec", "-b", branch, "--", "echo first$((1 + 1))")
    home.must("stop", branch, "--checkpoint", name)
    for one in (branch, name):
        assert "first2" in home.must("logs", one).stdout
    home.must("shell", branch, "-d")
    home.must("exec", "-b", branch, "--", "echo second$((1 + 1))")
    replaced = home.must("restore", name, "-b", branch, "--json").json()["replaced"]["capture"]
    assert "second2" in home.must("logs", replaced).stdout
    assert "second2" not in home.must("logs", branch).stdout
    home.must("stop", branch)
    done = home.cli("logs", "-f", branch)
    assert (done.code, done.stdout) == (4, "")
    assert "it is not live, and what its terminal had shown was not kept with it" in done.stderr
    home.must("undo", "-b", branch)


def test_one_word_of_a_command_may_be_shell_text(home: Home) -> None:
    home.must("shell", "t-text", "-d", "--", 'echo "$((20 + 3)) one"; exec sleep 1000')
    wait_until(lambda: home.must("logs", "t-text").stdout.split() == ["23", "one"], "it has run")
    for word, why in (("/etc", errno.EACCES), ("nosuch", errno.ENOENT), ("/etc/passwd", errno.EACCES)):
        done = home.cli("shell", "t-none", "-d", "--", word)
        said = f"waypoint: cannot run in place of the shell of branch t-none: {os.strerror(why)}: {word}\n"
        assert (done.code, done.stderr.startswith(said)) == (2, True), done.stderr
    assert home.cli("show", "t-none").code == 2, "nothing is left of it"


def test_who_brings_files_back_cannot_name_another_command(home: Home) -> None:
    """So the one that is gone with them keeps nothing from coming back."""
    home.must("shell", "t-gone", "-d", "--", "sleep", "1000")
    home.must("run", "-b", "t-gone", "--", "sh", "-c", "rm $(command -v sleep); echo kept >/srv/kept")
    home.must("checkpoint", "t-point", "-b", "t-gone", "--tier", "files")
    done = home.cli("fork", "t-point", "t-again")
    assert "in place of the shell" not in done.stderr
    assert home.must("cat", "t-again:/srv/kept").stdout == "kept\n"
