"""The line that shows a wait for the daemon: on a terminal only, and gone at the end."""

import pytest

from tests.cli.conftest import Spawn, exit_status
from tests.homes import Home
from tests.waiting import PATIENCE_S
from waypoint.cli.progress import TEXTS, stage_line
from waypoint.linux.storage import files
from waypoint.model.stages import Stage


def test_a_stage_has_a_bar_if_its_whole_amount_is_known() -> None:
    half = stage_line({"code": "store", "done": 3 << 20, "total": 6 << 20, "unit": "bytes"})
    assert half == f"storing  [{12 * '#'}{12 * '.'}]  3.0 MiB of 6.0 MiB"
    assert stage_line({"code": "remove", "done": 6, "total": 6}) == f"removing captures  [{24 * '#'}]  6 of 6 items"
    assert stage_line({"code": "remove", "done": 9, "total": 6}) == "removing captures  9 items"
    assert stage_line({"code": "export", "done": 2048, "total": None, "unit": "bytes"}) == "exporting  2.0 KiB"
    assert stage_line({"code": "wait-turn", "subject": "fix"}) == "waiting for another request on fix"
    assert stage_line({"code": "of-a-later-daemon", "subject": "x"}) == "of-a-later-daemon x"
    assert set(TEXTS) == set(Stage)


@pytest.mark.privileged
def test_a_slow_request_is_shown_on_a_terminal_only(home: Home, branch: str, on_terminal: Spawn) -> None:
    put = "mkdir -p $1; mkfifo /srv/gate; printf '#!/bin/sh\\nread x </srv/gate' >$1/slow; chmod 755 $1/slow"
    home.must("run", "-b", branch, "--", "sh", "-c", put, "sh", "/etc/waypoint/hooks/pre-checkpoint.d")
    checkpoint, release = ("checkpoint", "-b", branch, "--tier", "files"), ("run", "-b", branch, "--", "sh", "-c")
    with home.background(*checkpoint, "piped") as piped:
        shown = on_terminal(*checkpoint, "shown")
        shown.expect_exact(f"waiting for another request on {branch}")
        in_json = on_terminal(*checkpoint, "in-json", "--json")
        home.must(*release, "echo >/srv/gate")
        shown.expect_exact("running the hook pre-checkpoint.d/slow")
        for _ in (shown, in_json):
            home.must(*release, "echo >/srv/gate")
        shown.expect_exact("\r\x1b[Kshown  ")
        assert [exit_status(one) for one in (in_json, shown)] == [0, 0]
        output, errors = piped.communicate(timeout=PATIENCE_S)
    assert b"\x1b" not in shown.before + in_json.before
    assert (piped.returncode, output[:7], errors) == (0, b"piped  ", b"")


@pytest.mark.privileged
def test_an_exec_that_waits_for_the_shell_is_shown(home: Home, branch: str, on_terminal: Spawn) -> None:
    run = ("run", "-b", branch, "--", "sh", "-c")
    with home.background("exec", "-b", branch, "--", "mkfifo /srv/busy; read x </srv/busy") as first:
        home.must(*run, "until [ -p /srv/busy ]; do sleep 0.02; done")
        second = on_terminal("exec", "-b", branch, "--", "echo out; read x </srv/busy; echo end")
        second.expect_exact("waiting until an earlier command has ended")
        home.must(*run, "echo >/srv/busy")
        second.expect_exact("\r\x1b[Kout\r\n")
        home.must(*run, "echo >/srv/busy")
        assert exit_status(second) == first.wait(PATIENCE_S) == 0
    assert second.before == b"end\r\n"


@pytest.mark.privileged
def test_long_work_on_the_store_is_shown_until_it_is_done(home: Home, branch: str, on_terminal: Spawn) -> None:
    home.must("checkpoint", "-b", branch, "--tier", "files", "--wait", "kept")
    words = {"verify": "checking the store", "gc": "removing unused data of the store"}
    with files.locked(str(home.path / "store/lock")):  # as if another process wrote to the store for long
        shown = {verb: on_terminal(verb) for verb in words}
        for verb, line in shown.items():
            line.expect_exact(words[verb])
    for line in shown.values():
        line.expect_exact("\r\x1b[K")
        assert exit_status(line) == 0
