"""What btrfs reports as changed between two captures leads to the same image as reading all files."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.corner import corner as corner
from tests.store.stores import put_folder
from tests.upper.pool_homes import POOL_HOMES
from waypoint.linux.storage import btrfs_changes
from waypoint.store.scan import Changed, ScanOptions
from waypoint.store.store import Store, make_store
from waypoint.upper.contract import Pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]


@pytest.fixture
def pool(corner: Path) -> Iterator[Pool]:
    pool = POOL_HOMES["loop"](corner).open()
    yield pool
    pool.close()


def paths(tree: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    return sorted(path for path in tree.rglob("*") if wanted(path) and not path.is_symlink())


def change(tree: Path, chance: random.Random) -> None:
    """Change something at random."""
    folders, files = paths(tree, Path.is_dir), paths(tree, Path.is_file)
    file, moved = chance.choice(files), chance.choice([*folders, *files])
    new = chance.choice([tree, *folders]) / f"{chance.randrange(1000)}-new"
    acts: list[Callable[[], object]] = [
        lambda: new.write_bytes(chance.randbytes(chance.randrange(2000))),
        new.mkdir,
        file.unlink,
        lambda: new.is_relative_to(moved) or moved.rename(new),
        lambda: os.link(file, new),
        lambda: file.chmod(chance.randrange(0o1000)),
        lambda: os.setxattr(moved, "user.note", chance.randbytes(3)),
        lambda: os.truncate(file, chance.randrange(3000)),
        lambda: file.rename(chance.choice(files)),
        lambda: exchange(folders[0], folders[-1], tree),
    ]
    chance.choice(acts)()


def exchange(one: Path, two: Path, tree: Path) -> None:
    if not two.is_relative_to(one):
        one.rename(tree / "aside")
        two.rename(one)
        (tree / "aside").rename(two)


def store_changes(store: Store, pool: Pool, name: str, earlier: str, root: bytes) -> tuple[bytes, int]:
    """The ROOT of the tree, from that of an earlier one, and how many paths have changed."""
    found = btrfs_changes.changes(pool.path(name), pool.path(earlier))
    assert found is not None
    return put_folder(store, Path(pool.path(name)), ScanOptions(root, Changed(*found))), len(found.paths)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak(part="matrix")) for seed in range(1, 9))]
)
def test_the_changes_lead_to_the_same_image_as_reading_everything(pool: Pool, tmp_path: Path, seed: int) -> None:
    store, chance = make_store(str(tmp_path / "store")), random.Random(seed)
    tree = Path(pool.create("session"))
    for number in range(200):
        (tree / f"d{number % 10}/e{number % 3}").mkdir(parents=True, exist_ok=True)
        (tree / f"d{number % 10}/e{number % 3}/{number}").write_bytes(chance.randbytes(100))
    pool.snapshot("session", "capture-0", sealed=True)
    root = put_folder(store, Path(pool.path("capture-0")))
    for number in range(1, 7):
        for _ in range(chance.randrange(12)):
            change(tree, chance)
        pool.snapshot("session", f"capture-{number}", sealed=True)
        before, root = root, put_folder(store, Path(pool.path(f"capture-{number}")))
        found, count = store_changes(store, pool, f"capture-{number}", f"capture-{number - 1}", before)
        assert found == root
        assert count < 100
        if number % 2 == 0:  # the session goes on from a capture
            pool.remove("session")
            pool.snapshot(f"capture-{number}", "session")


def test_only_an_earlier_state_of_the_same_session_is_compared_with(pool: Pool) -> None:
    for name in ("one", "other"):
        (Path(pool.create(name)) / "file").touch()
        pool.snapshot(name, f"{name}-capture", sealed=True)

    def can(later: str, earlier: str) -> bool:
        return btrfs_changes.changes(pool.path(later), pool.path(earlier)) is not None

    pool.snapshot("one-capture", "fork")
    (Path(pool.path("fork")) / "new").touch()
    pool.snapshot("fork", "fork-capture", sealed=True)
    pool.snapshot("one", "one-later", sealed=True)
    assert can("fork-capture", "one-capture")
    assert can("one-later", "one-capture")
    assert not can("fork-capture", "other-capture")
    assert not can("fork-capture", "one-later"), "the fork was made before"
    assert not can("one-later", "fork-capture")
    assert not can("one-capture", "one-later")
    pool.remove("fork")
    assert not can("fork-capture", "one-capture"), "nobody knows from what the removed session was made"
    pool.remove("one")
    assert can("one-later", "one-capture")
    pool.seal("other")  # a session that has ended: its own tree is the capture
    assert can("other", "other-capture")
    assert not can("other", "missing")


def test_a_tree_that_was_changed_after_a_snapshot_is_no_earlier_state_of_it(pool: Pool) -> None:
    tree = Path(pool.create("base"))
    (tree / "file").touch()
    pool.snapshot("base", "capture", sealed=True)
    for name in ("ended", "beside"):
        pool.snapshot("capture", name)
        (Path(pool.path(name)) / "file").write_text(name)
    pool.snapshot("ended", "before", sealed=True)
    (Path(pool.path("ended")) / "file").write_text("changed")
    pool.seal("ended")
    pool.snapshot("capture", "later", sealed=True)
    for later in ("capture", "beside", "later", "before"):
        found = btrfs_changes.changes(pool.path(later), pool.path("ended"))
        assert found is None or b"file" in found.paths, later
    found = btrfs_changes.changes(pool.path("ended"), pool.path("capture"))
    assert found is not None
    assert b"file" in found.paths
