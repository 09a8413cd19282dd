"""What the router's programs may do to those who wait for them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.processes_now import words_of
from tests.waiting import DEADLINE_S, wait_until
from waypoint.egress import pasta, plan, router, session_side, stale
from waypoint.linux.calls import programs
from waypoint.linux.net import rtnetlink
from waypoint.linux.tasks import kin, pidfd, procfs
from waypoint.model.paths import OWN_RUNTIME, home_id


def test_an_nft_that_hangs_is_a_failure_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda _name: "/bin/sleep")
    monkeypatch.setattr(router, "_NFT_S", 0.05)
    with pytest.raises(OSError, match="nft did not end within"):
        router._nft(["1000"])


def test_the_pasta_of_an_earlier_version_is_ended(tmp_path: Path) -> None:
    """Its note names no group, as it is in none of its own."""
    with subprocess.Popen(["sleep", "1000"]) as pasta:
        note = {"pid": pasta.pid, "start": procfs.start_ticks(pasta.pid), "ipv6": True}
        (tmp_path / "router.json").write_text(json.dumps(note))
        router.sweep(router.Site(tmp_path, f"{tmp_path}/{kin.FOLDER}/routers", 0, None))
        try:
            assert pasta.wait(DEADLINE_S) == -9
        finally:
            pasta.kill()
    assert not (tmp_path / "router.json").exists()


def test_only_the_home_s_own_unnoted_pasta_is_ended_without_root(tmp_path: Path) -> None:
    """The homes of one user have runtime folders of the same name."""
    homes = [tmp_path / name for name in ("one", "other")]
    wait = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with contextlib.ExitStack() as ending:
        started = []
        for home in homes:
            like = ending.enter_context(subprocess.Popen([*wait, pasta.pid_file(home_id(str(home)))]))
            ending.callback(like.kill)
            started.append(like)
        wait_until(lambda: [words_of(like.pid) for like in started] == [like.args for like in started], "both run")
        router.sweep(router.Site(homes[0] / OWN_RUNTIME, f"{homes[0]}/{kin.FOLDER}/routers", 0, None))
        assert started[0].wait(DEADLINE_S) == -9
        assert started[1].poll() is None


@pytest.mark.privileged
@pytest.mark.requires("busybox")
def test_any_sleep_holds_the_network_of_the_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root: also one that lies elsewhere, and that does what its name says."""
    busybox = programs.find("busybox")
    assert busybox is not None
    (tmp_path / "sleep").symlink_to(busybox)
    monkeypatch.setattr(programs, "SEARCH_PATH", str(tmp_path))
    holder, let_go = pasta._hold_namespace(os.geteuid())
    ended = pidfd.open(holder)
    try:
        os.write(let_go, b".")
        wait_until(lambda: procfs.command_line(holder) == ["sleep", "infinity"], "it goes on as a sleep")
        assert not pidfd.wait_ended(ended, 0.3)
    finally:
        os.close(ended)
        os.close(let_go)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


class Kernel:
    """In place of the sockets for messages to it. Only what is asked for by a new pair is noted."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def do(self, messages: list[bytes]) -> None:
        self._done += ["up"] * messages.count(rtnetlink.bring_up(plan.SESSION_END.number))

    def wait_up(self, number: int) -> None:
        pass


@pytest.mark.parametrize("index", [None, plan.LISTED[0]])
def test_a_session_sends_nothing_before_what_was_opened_for_another_is_closed(
    monkeypatch: pytest.MonkeyPatch, index: int | None
) -> None:
    """An index is used again, and what was opened for the session that had it stays until then."""
    done: list[str] = []
    monkeypatch.setattr(router, "RouteSocket", lambda: nullcontext(Kernel(done)))
    monkeypatch.setattr(session_side, "index", lambda _route: index)
    monkeypatch.setattr(session_side, "lead_out", lambda *_, **__: done.append("led out"))
    monkeypatch.setattr(stale, "end", lambda _processes: done.append("stale"))
    made = router.Router.__new__(router.Router)
    monkeypatch.setattr(made, "_ipv6", value=False, raising=False)
    monkeypatch.setattr(made, "_route", Kernel(done), raising=False)
    monkeypatch.setattr(made, "_make_pair", lambda *_: plan.LISTED[0])
    monkeypatch.setattr(made, "_tell_opened", lambda *_: done.append("told"))
    made._attach(-1, router.Guest(1, 1, lambda: ()), [], ["192.0.2.1"])
    assert done == ["told", "up", "led out", *(["stale"] if index is None else [])]
