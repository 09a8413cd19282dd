"""What a tree may take of the pool: of all drivers, as far as they can count."""

import contextlib
import os
from pathlib import Path

import pytest

from tests.upper.grounds import MIB, Ground
from waypoint.model.errors import Failed
from waypoint.upper.contract import Pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs", "overlay")]


@pytest.mark.requires("simple-quotas")
def test_a_tree_takes_no_more_than_its_limit_or_the_pool_says_why(pool: Pool, ground: Ground) -> None:
    """Of what it writes itself: its copy begins anew, and a neighbour is not concerned."""
    for name in ("one", "other"):
        pool.create(name)
    why_not = pool.limit("one", 20 * MIB)
    if pool.driver == "copy" or ground.home.name == "btrfs":  # on the machine's own btrfs quotas are not ours to enable
        assert why_not.startswith("the pool is of plain folders" if pool.driver == "copy" else "quotas are off")
        return
    assert why_not == ""
    assert 10 <= filled("one", pool) < 20
    assert filled("other", pool) == 30
    pool.snapshot("one", "copy")
    assert filled("copy", pool, "more") == 30
    os.unlink(f"{pool.path('one')}/data")
    pool.sync("one")
    pool.seal("one")
    assert pool.limit("copy", 16 * MIB) == ""
    with pytest.raises(OSError, match="quota"):  # it has more than that already
        filled("copy", pool, "most")


@pytest.mark.requires("simple-quotas")
def test_what_lies_in_a_pool_that_counts_is_not_moved(corner: Path) -> None:
    """Moving it can leave the file system read-only for good: the kernel finds no group for a tree that is gone."""
    pool = Ground(corner, "btrfs").open()
    pool.create("one")
    assert pool.shrink(lambda: True, lambda: True) == 0
    assert pool.limit("one", 20 * MIB) == ""
    size = os.stat(corner / "pool.img").st_size
    with pytest.raises(Failed, match="a session with --disk has been in it"):
        pool.shrink(lambda: True, lambda: True)
    pool.remove("one")
    with pytest.raises(Failed, match="a session with --disk has been in it"):
        pool.shrink(lambda: True, lambda: True)
    assert os.stat(corner / "pool.img").st_size == size
    pool.close()


def filled(name: str, pool: Pool, file: str = "data") -> int:
    """Write 30 MiB into a new file of the tree; how many fitted."""
    with open(f"{pool.path(name)}/{file}", "wb", buffering=0) as opened, contextlib.suppress(OSError):
        while opened.tell() < 30 * MIB:
            opened.write(bytes(MIB))
    return os.stat(f"{pool.path(name)}/{file}").st_size // MIB
