"""Images and journals that the home's names.db does not know: kept where another one may know them."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.store.test_names_store import capture_of, row_of
from waypoint.branch.applying.apply_records import ApplyPlan
from waypoint.branch.applying.journal import Journal
from waypoint.capture.sweeping import sweep
from waypoint.linux.storage import files
from waypoint.model.details.applied_record import Applied
from waypoint.model.errors import StoreDamaged
from waypoint.model.records import Ref, Standing
from waypoint.service.durable.applying import forget_expired
from waypoint.service.durable.home_shelves import JOURNALS, shelves_beside
from waypoint.service.home import Home
from waypoint.store.belonging import MARK, keep_up
from waypoint.store.content.home_key import STORE
from waypoint.store.names import Names


class Daemon:
    """What a daemon does at its start with a home that has only what lies beside captures."""

    def __init__(self, home: Path, names: Names) -> None:
        self.home, self.names = home, names
        self.strangers = sweep(names, shelves_beside(home, names))

    def unknown(self) -> set[str]:
        return {one.id for one in Home.present_strangers(self)}  # type: ignore[arg-type]

    def put(self, number: int) -> str:
        """An image in the store, and on record."""
        image = self.leave(number)
        capture = capture_of(row_of("main"))
        with self.names.change("store") as change:
            change.add(capture)
            change.set_standing(capture.id, Standing(image=image, durable=True))
        return image

    def leave(self, number: int) -> str:
        """An image of which the daemon dies before it is on record."""
        image = f"{number:064x}"
        (self.home / STORE / "images" / image).touch()
        return image

    def apply(self, ident: str) -> str:
        journal = Journal(str(self.home / JOURNALS), ident)
        journal.begin(ApplyPlan(ident=ident, branch="main", machines=[], targets=[], actions=[], folders=[]))
        journal.note("settled")
        with self.names.change("apply") as change:
            change.apply(Applied(journal=ident, branch="main", files=1))
        return ident


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], Daemon]]:
    (tmp_path / STORE / "images").mkdir(parents=True)
    (tmp_path / JOURNALS).mkdir()
    with ExitStack() as held:
        yield lambda name: Daemon(tmp_path, held.enter_context(closing(Names(tmp_path / name))))


def test_what_another_database_may_know_stays_unknown_until_that_is_back(opened: Callable[[str], Daemon]) -> None:
    first = opened("first.db")
    theirs = {first.put(1), first.apply("a1")}
    second = opened("second.db")
    assert second.unknown() == theirs
    mine = {second.put(2), second.apply("a2")}
    assert opened("second.db").unknown() == theirs, "the home does not bear the mark of the second one"
    assert opened("first.db").unknown() == mine, "nor that of the first one any more, which has the same name"
    home: Any = SimpleNamespace(path=first.home, names=second.names, config=SimpleNamespace(keep_operations_s=0.0))
    home.present_strangers = lambda: second.strangers
    forget_expired(home)
    assert sorted(path.name for path in (first.home / JOURNALS).iterdir()) == ["a1", "a2"]
    home.present_strangers = list  # as if they were none
    forget_expired(home)
    assert sorted(path.name for path in (first.home / JOURNALS).iterdir()) == ["a2"]


def test_an_older_copy_knows_what_was_put_before_it_was_made(opened: Callable[[str], Daemon], tmp_path: Path) -> None:
    first = opened("names.db")
    first.put(1)
    with first.names.change("copied"):
        pass
    first.names.close()
    older = (tmp_path / "names.db").read_bytes()
    later = opened("names.db")
    image = later.put(2)
    later.names.close()
    for path in tmp_path.glob("names.db*"):
        path.unlink()
    (tmp_path / "names.db").write_bytes(older)
    assert opened("names.db").unknown() == {image}


def test_so_does_one_that_was_made_while_the_daemon_ran(opened: Callable[[str], Daemon], tmp_path: Path) -> None:
    """Which is as often opened as the newer one."""
    daemon = opened("names.db")
    daemon.put(1)
    with closing(sqlite3.connect(tmp_path / "names.db")) as db, closing(sqlite3.connect(tmp_path / "older")) as copy:
        db.backup(copy)
    with daemon.names.change("checkpoint") as change:
        change.create("later", Ref(kind="checkpoint", capture="c"))
    image = daemon.put(2)
    left = daemon.leave(3)
    keep_up(daemon.home, daemon.names)
    daemon.names.close()
    for path in tmp_path.glob("names.db*"):
        path.rename(tmp_path / path.name.replace("names", "newer"))
    (tmp_path / "older").rename(tmp_path / "names.db")
    assert opened("names.db").unknown() == {image, left}
    assert opened("newer.db").unknown() == {left}


def test_what_a_crash_has_left_is_no_stranger(opened: Callable[[str], Daemon]) -> None:
    first = opened("first.db")
    first.put(1)
    first.leave(2)
    assert opened("first.db").unknown() == set()


def test_an_image_that_was_put_anew_is_known(opened: Callable[[str], Daemon]) -> None:
    opened("first.db").put(1)
    second = opened("second.db")
    assert second.put(1) not in second.unknown()


def test_a_mark_never_goes_back(opened: Callable[[str], Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps it up as another thread does comes after that one."""
    daemon, publish = opened("names.db"), files.publish
    later = threading.Thread(target=keep_up, args=(daemon.home, daemon.names))

    def publishing(path: str, content: bytes, *, durable: bool) -> None:
        if later.ident is None:
            with daemon.names.change("checkpoint") as change:
                change.create("later", Ref(kind="checkpoint", capture="c"))
            later.start()
            later.join(0.2)  # in vain
        publish(path, content, durable=durable)

    monkeypatch.setattr(files, "publish", publishing)
    keep_up(daemon.home, daemon.names)
    later.join()
    assert f'"last":{daemon.names.last_number()}'.encode() in (daemon.home / MARK).read_bytes()


@pytest.mark.parametrize("readable", [0, 1])
def test_a_mark_of_what_cannot_be_read_is_none(opened: Callable[[str], Daemon], readable: int) -> None:
    """`readable`: so often the database can be read before. Who keeps up the mark does not fail for it."""
    daemon = opened("names.db")

    class Damaged:
        left = readable

        def identity(self) -> object:
            if self.left == 0:
                raise StoreDamaged("read", "names.db", "it is malformed")
            self.left -= 1
            return daemon.names.identity()

        last_number = daemon.names.last_number

    names: Any = Damaged()
    keep_up(daemon.home, names)
    assert (daemon.home / MARK).exists() == (readable == 0)
