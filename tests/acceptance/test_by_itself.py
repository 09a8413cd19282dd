"""What names stand for comes to be in the store without being asked for, and then need not be on disk twice."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sessions import inside
from tests.acceptance.test_durable import store_programs
from tests.cli.conftest import daemon_pid
from tests.homes import Home, empty, open_home
from tests.waiting import holds_within, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

SOON_S = 0.5
PLENTY_BYTES = 1 << 40
STORED_S = 60.0
"""Until a program that has what others leave of the processors has put some captures into the store, one each."""


@pytest.fixture(scope="module")
def kept() -> Iterator[Home]:
    """A home that puts captures into its store by itself."""
    with open_home(
        "kept", settings={"durable_after_s": SOON_S, "hot_budget_bytes": PLENTY_BYTES, "hot_memory_bytes": 0}
    ) as home:
        yield home


@pytest.fixture
def keeping(kept: Home) -> Iterator[Home]:
    """With a session, for this test alone."""
    kept.must("shell", "-d", "main", "--cwd", "/srv")
    yield kept
    empty(kept)
    kept.must("gc", "--keep-operations", "0")


def configure(home: Home, **settings: object) -> None:
    """For the next daemon of the home."""
    config = home.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))


def restart(home: Home, **settings: object) -> None:
    """Another daemon, with these settings."""
    home.must("daemon", "stop")
    configure(home, **settings)
    home.must("ps")


def shown(home: Home, name: str) -> dict[str, Any]:
    found: dict[str, Any] = home.must("show", name, "--json").json()
    return found


def durable(home: Home, *names: str) -> Callable[[], bool]:
    return lambda: all(shown(home, name)["durable"] for name in names)


def hot(home: Home) -> set[str]:
    return {path.name for path in (home.path / "hot").iterdir()}


def store_jobs(home: Home) -> list[str]:
    """What the daemon, since its start, has told of work on the store."""
    return [line for line in home.must("events").stdout.splitlines() if "store" in line]


def test_what_names_stand_for_is_put_into_the_store(keeping: Home) -> None:
    home = keeping
    home.must("checkpoint", "a")
    home.must("checkpoint", "b")
    wait_until(durable(home, "a", "b"), "the captures are in the store", STORED_S)
    assert shown(home, "b")["image"] not in (None, shown(home, "a")["image"])
    assert store_jobs(home)[-1].endswith(" done"), store_jobs(home)
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in store_programs(home)] == [19], "nobody waits for it"
    inside(home, "main", "echo kept > tip")
    home.must("stop", "main")
    wait_until(durable(home, "main"), "the tip of an ended session is in the store", STORED_S)
    home.must("evict", "--all")
    listed = [
        (home.must(*words).stdout, home.must(*words, "--json").json()) for words in (("ps", "--all"), ("branch",))
    ]
    assert [(json[0]["kept_in"], "store alone" in text) for text, json in listed] == [("store alone", True)] * 2
    home.must("shell", "-d", "main")
    assert inside(home, "main", "cat tip") == "kept\n"


def test_nothing_is_put_where_it_is_to_be_asked_for_and_the_next_daemon_goes_on(keeping: Home) -> None:
    home = keeping
    restart(home, durable_after_s=None)
    home.must("checkpoint", "a")
    assert not holds_within(3 * SOON_S, lambda: store_jobs(home) != [])
    assert not shown(home, "a")["durable"]
    configure(home, durable_after_s=SOON_S)
    os.kill(daemon_pid(home), signal.SIGKILL)
    wait_until(durable(home, "a"), "the next daemon has put it into the store", STORED_S)
    assert store_jobs(home) != []


def test_hot_copies_go_when_they_are_too_many_which_was_not_used_first(keeping: Home) -> None:
    home = keeping
    inside(home, "main", "kept=17")
    for name in "abc":
        home.must("checkpoint", name)
    wait_until(durable(home, *"abc"), "all are in the store", STORED_S)
    home.must("fork", "a", "again")
    captures = {name: str(shown(home, name)["capture"]) for name in "abc"}
    sizes = {name: used(home.path / "hot" / captures[name]) for name in "abc"}
    others = sum(used(home.path / "hot" / ident) for ident in hot(home) - {*captures.values()})
    restart(home, hot_budget_bytes=sizes["a"] + sizes["c"] + others + sizes["b"] // 2)
    wait_until(lambda: captures["b"] not in hot(home), "b, which was not used for the longest time, goes", STORED_S)
    assert {captures["a"], captures["c"]} <= hot(home)
    assert inside(home, "again", "echo $kept") == "17\n"
    restart(home, hot_budget_bytes=1)
    wait_until(lambda: not hot(home) & {*captures.values()}, "none is left there", STORED_S)
    home.must("restore", "a", "--new", "anew")
    assert inside(home, "anew", "echo $kept") == "17\n"


def used(folder: Path) -> int:
    paths = [folder, *folder.rglob("*")]
    return sum(path.lstat().st_blocks * 512 for path in paths)


def test_after_a_power_loss_what_may_be_torn_comes_from_the_store_or_is_said(tmp_path: Path) -> None:
    """The machine went down as the daemon ran, and the images of memory of two captures have lost their last bytes."""
    with open_home("torn") as home:
        home.must("shell", "-d", "main")
        inside(home, "main", "kept=17")
        captures = {"a": home.must("checkpoint", "a", "--wait", "--json").json()["capture"]}
        captures["b"] = home.must("checkpoint", "b", "--json").json()["capture"]
        home.must("checkpoint", "whole")
        home.must("stop", "main")
        home.must("daemon", "stop")
        (home.path / "machine.json").write_text('{"boot": "earlier"}')
        for ident in captures.values():
            (pages,) = home.images(ident).glob("pages-1.img")
            os.truncate(pages, pages.stat().st_size - 4096)
        home.must("restore", "a", "--new", "again")
        assert inside(home, "again", "echo $kept") == "17\n"
        done = home.cli("restore", "b", "--new", "torn")
        assert (done.code, " bytes, written were " in done.stderr) == (10, True), done.stderr
        assert [shown(home, name)["kept_in"] for name in ("a", "b")] == ["store", "torn"]
        said = "degraded: the machine went down before this was in the store: what the disk has of it may be torn"
        assert said in home.must("restore", "b", "-b", "torn", "--only", "files").stderr
        assert said in home.must("restore", "b", "-b", "torn", "--only", "files").stderr  # in a live session
        assert said in home.must("restore", "b", "-b", "torn", "--tier", "files").stderr
        home.must("checkpoint", "c", "-b", "again", "--wait")  # though what it goes on from is not in the store
        assert not shown(home, "b")["durable"]
        (tmp_path / "trace").touch()
        home.must("layer", "attach", "whole", f"trace={tmp_path / 'trace'}")  # a new capture, of the same images
        done = home.cli("export", "whole", str(tmp_path / "exported"))
        step = "restore it, see whether all is there, and checkpoint that: waypoint checkpoint NAME --wait"
        assert (done.code, step in done.stderr) == (125, True), done.stderr
        assert said in home.must("restore", "whole", "--new", "told").stderr
        home.must("checkpoint", "d", "-b", "told", "--wait")
        home.must("export", "d", str(tmp_path / "exported"))
        assert said not in home.must("restore", "d", "--new", "anew").stderr
