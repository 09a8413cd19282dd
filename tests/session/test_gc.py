"""`gc` frees disk space: it removes exactly the captures that no name, session or undo needs."""

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.homes import MIB, Home, open_home
from tests.session import ledger
from tests.upper.pool_homes import reserved_bytes
from tests.waiting import wait_until
from waypoint.client import Client
from waypoint.model.errors import StateConflict, UnknownName, UsageProblem

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs")]


@pytest.fixture
def own() -> Iterator[Home]:
    with open_home("gc") as home:
        yield home


def test_gc_keeps_captures_that_have_a_name_or_that_undo_needs(own: Home) -> None:
    client = Client(own.path)
    main = client.start("main")
    main.exec("kept=old; echo old > /srv/mark; sleep 1000 &")
    main.checkpoint("x", tier="live")
    main.exec("kept=new; echo new > /srv/mark")
    main.checkpoint("x", tier="live", force=True)
    client.fork("x", "parked")[0].checkpoint("parked-now", park=True)
    client.fork("main", "gone")[0].stop(discard=True)
    assert own.must("gc").stdout.startswith("removed 0 captures")
    own.must("undo", "-b", "main")  # removes the capture of main that the fork made
    own.must("undo", "-b", "main")  # takes back the checkpoint that has moved x
    assert client.fork("x", "first")[0].exec("echo $kept; cat /srv/mark").output == b"old\nold\n"
    removed = own.must("gc", "--keep-operations", "0", "--json").json()["removed"]
    ledger.check(own)
    assert len(removed) == 2
    assert main.exec("echo $kept; cat /srv/mark").output == b"new\nnew\n"
    assert client.fork("x", "second")[0].exec("echo $kept; cat /srv/mark").output == b"old\nold\n"
    assert client.start("parked").exec("echo $kept; cat /srv/mark").output == b"new\nnew\n"
    for one in removed:
        with pytest.raises(UnknownName):
            client.fork(one["capture"], "never")
    undo = own.cli("undo", "-b", "main")
    assert (undo.code, "older than" in undo.stderr) == (4, True)
    rows = [one for one in client.history.operations() if one.verb == "gc"]
    assert [row.note.partition(",")[0] for row in rows] == ["removed 2 captures"]


def test_a_dry_run_reports_the_same_and_changes_nothing(own: Home) -> None:
    main = Client(own.path).start("main")
    for _ in range(3):
        main.checkpoint("x", force=True, anew=True)

    def history() -> list[tuple[str, bool]]:
        return [(one["capture"], one["removed"]) for one in own.must("log", "--all", "--json").json()]

    before = history()
    would = own.must("gc", "--keep-operations", "0s", "--dry-run", "--json").json()
    assert history() == before
    tip = own.must("show", "x", "--json").json()["capture"]
    assert [(one["capture"], one["names"], one["why"]) for one in would["kept"]] == [(tip, ["main", "x"], ["name"])]
    fewer = own.must("gc", "--keep-operations", "0s", "--keep-last", "2", "--dry-run")
    assert fewer.stdout.count("one of the last (--keep-last)") == 2, fewer
    assert "is kept: named main, x; one of the last" in fewer.stdout
    assert fewer.stdout.endswith("would remove 1 capture\n")
    assert own.cli("gc", "--keep-daily", "0").code == UsageProblem.exit_code
    done = own.must("gc", "--keep-operations", "0", "--json").json()
    assert [one["capture"] for one in would["removed"]] == [one["capture"] for one in done["removed"]]
    assert len(done["removed"]) == 2


def test_a_malformed_age_is_refused(own: Home) -> None:
    for age in ("", "x", "-1", "1y", "1e9", "99999999999w"):
        done = own.cli("gc", "--keep-operations", age)
        assert (done.code, "is not an age" in done.stderr) == (UsageProblem.exit_code, True), age


@pytest.mark.soak(part="faults")
def test_gc_removes_sessions_and_captures_that_are_not_on_record(own: Home) -> None:
    client = Client(own.path)
    client.start("lost").exec("sleep 1000 &")
    client.session("lost").checkpoint("lost-now", tier="live")
    own.must("daemon", "stop")
    for path in own.path.glob("names.db*"):
        path.unlink()
    kept = client.start("kept")
    assert {one.kind for one in client.strangers()} == {"processes", "files", "capture", "session"}
    step = "run 'waypoint daemon stop' and put that file back; otherwise 'waypoint gc' removes them"
    assert f"\n  next: if another names.db knows them, {step}\n" in own.must("ps").stderr
    assert len(client.history.gc(dry_run=True).strangers) == len(client.strangers())
    own.must("gc")
    assert client.strangers() == []
    ledger.check(own)
    assert kept.exec("echo here").output == b"here\n"


def test_du_shows_what_each_capture_and_session_holds(own: Home) -> None:
    session = Client(own.path).start("main")
    session.exec("head -c 8M /dev/urandom > /srv/all")
    session.checkpoint("one", tier="live")
    session.exec("head -c 4M /dev/urandom > /srv/late; sync")
    found = own.must("du", "--json").json()
    one, live = found["holders"]
    assert (one["kind"], one["names"], one["files_bytes"] // MIB) == ("capture", ["main", "one"], 8)
    assert (live["kind"], live["names"], live["files_bytes"] // MIB) == ("session", ["main"], 12)
    assert one["own_files_bytes"] < MIB < one["processes_bytes"] * 2
    assert live["own_files_bytes"] // MIB == 4
    assert found["home_bytes"] >= found["pool_bytes"] + found["hot_bytes"] + found["names_bytes"] > 0
    assert own.must("du", "one", "--json").json()["holders"] == [one]
    assert re.search(r"^session +\w+  main +12\.\d MiB +4\.\d MiB +0 B$", own.must("du").stdout, re.MULTILINE)
    refused = own.cli("du", "none")
    assert (refused.code, "none" in refused.stderr) == (2, True)


def test_beyond_the_budget_the_oldest_operations_lose_their_undo(own: Home) -> None:
    client = Client(own.path)
    main = client.start("main")
    taken = []
    for number in range(4):
        main.exec(f"kept={number}; random=$(head -c 1M /dev/urandom | base64)")
        taken.append(main.checkpoint("x", tier="live", force=True, anew=True).capture)
    numbers = [one.number for one in reversed(client.history.operations()) if one.verb == "checkpoint"]
    kept = own.must("gc", "--undo-budget", "32M", "--json").json()
    assert (kept["removed"], set(kept["evicted"]) >= {taken[0]}) == ([], True), "stored before anything is removed"
    held = {one["by"]: one for one in kept["held"]}
    assert {by: one["captures"] for by, one in held.items()} == {"names": 1, "policy": 0, "undo": 3, "files": 0}
    budget = (held["undo"]["copies_bytes"] + held["undo"]["stored_bytes"]) // 2
    removed = [one["capture"] for one in own.must("gc", "--undo-budget", f"{budget}", "--json").json()["removed"]]
    assert 0 < len(removed) < 3
    assert removed == taken[: len(removed)]
    with pytest.raises(StateConflict) as refused:
        client.history.undo(numbers[len(removed)])
    assert refused.value.code == "undo-expired"
    said = {one["number"]: one["said"] for one in own.must("op", "log", "--json").json()}
    assert ["older than" in said[number] for number in numbers] == [
        index <= len(removed) for index in range(len(numbers))
    ]
    own.must("undo", str(numbers[3]))
    assert client.fork("x", "first")[0].exec("echo $kept").output == b"2\n"

    main.exec("large=$(head -c 20M /dev/zero | tr '\\0' a)")
    own.must("setup", "--undo-budget", "1")
    own.must("checkpoint", "x", "--force", "--wait", "-b", "main")
    wait_until(lambda: client.history.operations(1)[0].verb == "gc", "what only undo needs is removed")
    assert [one["captures"] for one in own.must("du", "--json").json()["held"] if one["by"] == "undo"] == [0]
    ledger.check(own)
    told = own.must("gc").stdout
    assert re.search(r"\nheld: \d.*: \d captures? with a name; 'waypoint rm NAME' frees that", told), told


@pytest.mark.requires("simple-quotas")
def test_disk_space_that_gc_cannot_free_is_reported(own: Home) -> None:
    Client(own.path).start("main").checkpoint("x")
    own.must("checkpoint", "x", "--force", "--anew")
    assert own.must("gc", "--keep-operations", "0s").stderr == ""
    own.must("shell", "limited", "-d", "--disk", "64M")
    own.must("checkpoint", "x", "--force", "--anew", "-b", "main")
    done = own.must("gc", "--keep-operations", "0s")
    assert done.stdout.splitlines()[-1].startswith("removed 1 capture;")
    said = "a session has had a limit of disk space, so free space between its files is kept for later sessions"
    assert done.stderr == f"not freed: the free space of the pool: {said}\n"
    assert own.must("gc", "--json").json()["failed"] == []


@pytest.mark.soak(part="disks")
def test_a_long_loop_of_checkpoints_keeps_to_the_budget(own: Home) -> None:
    budget = 400 * MIB
    Client(own.path).start("main").exec(
        "python3 -c 'import os, time; d = bytearray(os.urandom(30 << 20))\nwhile 1: d[0] ^= 1; time.sleep(.1)' &"
    )
    config = own.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "undo_budget_bytes": budget}))
    taken = []
    for number in range(60):
        if number % 20 == 0:  # also while captures are stored, evicted or removed
            os.kill(own.must("daemon", "status", "--json").json()["pid"], signal.SIGKILL)
        taken.append(own.must("checkpoint", "x", "--force", "--anew", "-b", "main", "--json").json()["capture"])

    def undo() -> dict[str, int]:
        return next(one for one in own.must("du", "--json").json()["held"] if one["by"] == "undo")

    wait_until(lambda: undo()["copies_bytes"] <= budget // 4, "most captures for undo are in the store alone")
    held = undo()
    assert held["captures"] == len(set(taken)) - 1, held  # one is reused if the program has not run since
    assert held["stored_bytes"] < 60 * MIB
    assert Client(own.path).fork(taken[3], "early")[0].exec("pgrep -c python3").output == b"1\n"
    ledger.check(own)
    own.must("gc", "--undo-budget", "10M")
    assert 0 < undo()["captures"] < held["captures"]


@pytest.mark.soak(part="disks")
def test_the_pool_becomes_smaller_only_when_no_session_lives(own: Home) -> None:
    client, image = Client(own.path), own.path / "pool.img"
    main, other = client.start("main"), client.start("other")
    main.exec("head -c 1500M /dev/zero > /srv/data; sync; rm /srv/data; sync", timeout_s=120)
    large = reserved_bytes(image)
    refused = own.cli("gc", "--compact")
    assert refused.code == StateConflict.exit_code
    assert "sessions are running in it: main, other\n  next: stop them first: waypoint stop --all\n" in refused.stderr
    done = own.must("gc")
    assert re.fullmatch(
        r"not freed: \d+ MiB of free space in the pool: it is given back when no session .*\n", done.stderr
    )
    assert reserved_bytes(image) == large
    other.stop()
    main.exec("echo kept > /srv/kept")
    main.stop()
    own.must("gc", "--compact")
    assert reserved_bytes(image) < large - 1000 * MIB
    assert client.start("main").exec("cat /srv/kept").output == b"kept\n"
    ledger.check(own)


@pytest.mark.soak(part="disks")
def test_the_pool_is_compacted_after_the_end_of_the_last_session(own: Home) -> None:
    client, image = Client(own.path), own.path / "pool.img"
    new = reserved_bytes(image)
    main = client.start("main")
    main.exec("head -c 1500M /dev/zero > /srv/data; sync", timeout_s=120)
    main.stop(discard=True)
    wait_until(lambda: reserved_bytes(image) <= new + 16 * MIB, "the pool is as small as a new one")
    main = client.start("main")
    assert main.exec("head -c 1000M /dev/zero > /srv/data; sync; echo on", timeout_s=120).output == b"on\n"
    ledger.check(own)


def test_rm_now_frees_the_captures_and_nothing_that_others_need(own: Home) -> None:
    client = Client(own.path)
    main = client.start("main")
    main.checkpoint("x")
    main.exec("echo y >/srv/y")
    client.history.remove("x")
    own.must("undo")  # brings back the name: without --now the capture stays
    kept = main.checkpoint("y").capture
    gone = own.must("show", "x", "--json").json()["capture"]
    own.must("rm", "--now", "x", "y")
    assert [(one.capture, one.removed) for one in client.history.log("main")] == [(kept, False), (gone, True)]
    refused = own.cli("undo")
    assert (refused.code, f"capture {gone[:12]} was removed" in refused.stderr) == (4, True)
    client.fork("main", "branch")[0].stop()
    ids = {one.capture for one in client.history.log("branch")} - {one.capture for one in client.history.log("main")}
    own.must("rm", "--now", "branch")
    states = {one.capture: one.removed for one in client.history.log(all=True)}
    assert [states.get(one, True) for one in ids] == [True] * len(ids)
    ledger.check(own)
