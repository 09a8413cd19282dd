"""Holding, dropping and sweeping captures; the pause of a capture, during which its session is frozen."""

import contextlib
import os
import sqlite3
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.records.test_names_store import capture_of, row_of
from waypoint.capture import pause
from waypoint.capture.captures import Captures
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.capture.sweeping import sweep
from waypoint.linux.tasks import pauses
from waypoint.model.errors import Failed, HostLacks, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture
from waypoint.model.session_facts import StrangerFacts
from waypoint.processes.criu.rpc import CriuProgram
from waypoint.processes.criu.worker import Spawn
from waypoint.records.names import Names
from waypoint.upper.contract import Pool
from waypoint.upper.open_pool import open_pool

needs_root = [pytest.mark.privileged, pytest.mark.requires("root")]


class Owner:
    """The captures of a home that has no daemon."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pool: Pool = open_pool(home, "copy")
        self.names = Names(home / "names.db")
        self.captures = Captures(home, self.pool, self.names, _no_criu, _no_spawn)

    def make(self, *, on_record: bool = True, tree: str = "") -> Capture:
        """Make a capture: a tree in the pool and a folder in `hot`, both named by the capture's id. `tree`: another
        name for the tree, as if the capture's session had ended.
        """
        capture_id = new_id()
        row = msgspec.structs.replace(row_of("main"), tree=tree or capture_id)
        made = capture_of(row, capture_id)
        self.pool.create(made.tree)
        (self.home / "hot" / made.id / "images").mkdir(parents=True)
        if on_record:
            with self.names.change("checkpoint") as change:
                change.add(made)
        return made

    def sweep(self) -> list[StrangerFacts]:
        return sweep(self.names, self.captures.inventories([]))

    def is_there(self, made: Capture) -> bool:
        parts = {made.tree in self.pool.list(), (self.home / "hot" / made.id).exists()}
        assert len(parts) == 1, "only one of the two parts of a capture exists"
        return parts == {True}


def _no_criu() -> CriuProgram:
    raise HostLacks("find", "a CRIU", "this test has none")


def _no_spawn(init_pid: int) -> Spawn:
    raise AssertionError(f"the test must not dump any process, but dumps {init_pid}")


def _killed_criu() -> CriuProgram:
    raise Failed("use CRIU at", "/usr/sbin/criu", "it was killed", "try again")


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """A home after a first sweep, which links its folders to the database."""
    owner = Owner(tmp_path)
    owner.sweep()
    return owner


class TestOnDisk:
    pytestmark = needs_root

    def test_a_held_capture_stays_until_the_last_hold_ends(self, owner: Owner) -> None:
        made = owner.make(on_record=False)
        with owner.captures.hold(made) as first:
            with owner.captures.hold(made):
                owner.captures.drop(made)
            assert owner.is_there(made)
            assert os.path.isdir(first.files)
        assert not owner.is_there(made)

    def test_a_capture_fails_if_criu_is_killed_during_the_search_for_it(self, owner: Owner) -> None:
        captures = Captures(owner.home, owner.pool, owner.names, _killed_criu, _no_spawn)
        subject: Any = SimpleNamespace(
            processes=lambda: [1], facts=SimpleNamespace(branch="main", init_pid=os.getpid())
        )
        with pytest.raises(Failed, match="it was killed"):
            captures.take(subject, CaptureOptions(None, "checkpoint"))
        assert owner.sweep() == []

    def test_a_capture_that_is_not_held_is_dropped_at_once(self, owner: Owner) -> None:
        made, other = owner.make(on_record=False), owner.make()
        with owner.captures.hold(other):
            owner.captures.drop(made)
            assert not owner.is_there(made)
        assert owner.is_there(other)

    def test_the_capture_of_an_ended_session_is_dropped_with_its_tree(self, owner: Owner) -> None:
        made, other = owner.make(tree="theirs", on_record=False), owner.make()
        owner.captures.drop(made)
        assert not owner.is_there(made)
        assert owner.is_there(other)

    def test_the_sweep_removes_disposable_captures_that_are_not_on_record(self, owner: Owner) -> None:
        kept, lost = owner.make(), owner.make(on_record=False)
        with owner.names.change("test") as change:
            for made in (kept, lost):
                change.add_disposable(made.id)
        owner.sweep()
        assert owner.is_there(kept)
        assert not owner.is_there(lost)

    def test_the_sweep_reports_and_keeps_unknown_captures(self, owner: Owner) -> None:
        stranger = owner.make(on_record=False)
        for _daemon in range(2):
            found = owner.sweep()
            assert {(one.kind, one.id) for one in found} == {("files", stranger.id), ("capture", stranger.id)}
            assert owner.is_there(stranger)

    def test_the_sweep_with_an_older_copy_of_the_database_keeps_its_disposable_captures(self, owner: Owner) -> None:
        """In the copy the capture is disposable; the newer database has it on record."""
        made = owner.make(on_record=False)
        with owner.names.change("test") as change:
            change.add_disposable(made.id)
        copy = owner.home / "copy.db"
        with contextlib.closing(sqlite3.connect(owner.home / "names.db")) as db:
            db.execute(f"VACUUM INTO '{copy}'")
        with owner.names.change("checkpoint") as change:
            change.add(capture_of(row_of("main"), made.id))
        owner.sweep()
        owner.names.close()
        copy.rename(owner.home / "names.db")
        older = Owner(owner.home)
        for _daemon in range(2):
            assert {one.id for one in older.sweep()} == {made.id}
            assert older.is_there(made)

    def test_after_a_failed_transaction_the_capture_stays_disposable(self, owner: Owner) -> None:
        made = owner.make(on_record=False)
        with owner.names.change("test") as change:
            change.add_disposable(made.id)
        with contextlib.suppress(KeyError), owner.names.change("checkpoint") as change:
            change.add(capture_of(row_of("main"), made.id))
            raise KeyError
        owner.sweep()
        assert not owner.is_there(made)

    def test_the_files_of_a_capture_stay_if_the_store_cannot_bring_its_lost_images_back(self, owner: Owner) -> None:
        made = owner.make()
        images = owner.home / "hot" / made.id / "images"
        images.rmdir()
        images.symlink_to("../.memory/none")  # the machine has stopped
        with owner.names.change("store") as change:
            change.set_standing(made.id, msgspec.structs.replace(owner.names.standing(made.id), image="0" * 64))
        with pytest.raises(WaypointError), owner.captures.hold(made):
            pass
        assert os.path.isdir(owner.pool.path(made.tree))

    def test_every_layer_has_a_size(self, owner: Owner) -> None:
        made = owner.make()
        assert set(owner.captures.measure(made)) == {"files"}


def test_a_request_waits_for_the_end_of_a_pause() -> None:
    order, waits = list[str](), threading.Event()

    def work() -> None:
        waits.set()
        pauses.wait()
        order.append("work")

    thread = threading.Thread(target=work)
    with pauses.announced():
        thread.start()
        waits.wait()
        order.append("pause")
    thread.join()
    pauses.wait()  # returns at once, since no pause remains
    assert order == ["pause", "work"]


def test_a_request_waits_only_a_short_time_for_the_end_of_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "WAIT_S", 0.01)
    with pauses.announced():
        pauses.wait()


def test_a_pause_is_announced_until_its_clock_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause, "freeze_for_dump", lambda _: time.monotonic())
    held = pause.Pause("/no/such/group")
    held.announce()
    held.begin(for_dump=True)
    assert pauses.are_under_way()
    held.stop_clock()
    assert held.ms > 0
    assert not pauses.are_under_way()
