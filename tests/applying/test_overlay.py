"""Whatever a session has made of its view: applied, the machine is what the view showed; taken back, what it was."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.applying.ground import Ground
from tests.fuzzing import bounded
from tests.upper.pictures import ACL_USER_1234_RWX, CAPABILITY_NET_RAW, picture

pytestmark = pytest.mark.privileged

NAMES = ["a", "b", "\udcff\n", "d"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
SIZES = st.sampled_from([0, 1, 5000, 200_000])


def _write(root: Path, path: str, size: int) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    with open(
        root / path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    ) as file:  # ENXIO: FIFO
        file.write(os.urandom(size))


def _fill(root: Path, path: str, size: int) -> None:
    for name in NAMES[:3]:
        _write(root, f"{path}/{name}", size)


def _sparse(root: Path, path: str, size: int) -> None:
    _write(root, path, size)
    os.truncate(root / path, size + (1 << 20))


def _remove(root: Path, path: str, _size: int) -> None:
    if (root / path).is_dir() and not (root / path).is_symlink():
        shutil.rmtree(root / path)
    else:
        (root / path).unlink()


def _replace(root: Path, path: str, size: int) -> None:
    """A folder where a file was, and the other way round."""
    was_folder = (root / path).is_dir()
    _remove(root, path, 0)
    (_write if was_folder else _fill)(root, path, size)


def _move(root: Path, path: str, _size: int) -> None:
    (root / path).rename(root / f"{path}-moved")


def _move_up(root: Path, path: str, _size: int) -> None:
    (root / path).rename(root / NAMES[-1])


def _link(root: Path, path: str, _size: int) -> None:
    os.link(root / path, root / f"{path}-link", follow_symlinks=False)


def _symlink(root: Path, path: str, _size: int) -> None:
    (root / f"{path}-to").symlink_to("/nowhere/at all")


def _attributes(root: Path, path: str, size: int) -> None:
    os.chown(root / path, 1234, size)
    os.chmod(root / path, 0o4751)
    os.setxattr(root / path, "user.note", b"\x00\xff")
    os.setxattr(root / path, "system.posix_acl_access", ACL_USER_1234_RWX)
    if (root / path).is_dir():
        os.setxattr(root / path, "system.posix_acl_default", ACL_USER_1234_RWX)
    else:
        os.setxattr(root / path, "security.capability", CAPABILITY_NET_RAW)


def _touch(root: Path, path: str, size: int) -> None:
    os.utime(root / path, ns=(1, 10**18 + size))


def _fifo(root: Path, path: str, _size: int) -> None:
    os.mkfifo(root / path, 0o640)


ACTS: list[Callable[[Path, str, int], None]] = [
    *(_write, _fill, _sparse, _remove, _remove, _replace, _move, _move, _move_up),
    *(_link, _symlink, _attributes, _touch, _fifo),
]
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), PATHS, SIZES), max_size=12)


def _do(root: Path, steps: list[tuple[Callable[[Path, str, int], None], str, int]]) -> None:
    for act, path, size in steps:
        try:
            act(root, path, size)
        except (OSError, shutil.Error):  # nothing is there, or something else
            continue


def _seen(root: Path) -> dict[bytes, Any]:
    return picture(root)


@bounded(60)
@given(before=STEPS, after=STEPS)
def test_the_machine_is_what_the_session_showed(ground: Ground, before: Any, after: Any) -> None:
    for one in ground.base.parent.iterdir():
        shutil.rmtree(one, ignore_errors=True)
        one.unlink(missing_ok=True)
    ground = Ground(ground.base.parent)
    _fill(ground.base, "a", 10)
    _fill(ground.base, "b/c", 3000)
    _do(ground.base, before)
    ground.begin()
    was = _seen(ground.base)
    with ground.session() as view:
        _do(view, after)
        wanted = _seen(view)
    assert ground.apply(dry_run=True).conflicts == []
    assert _seen(ground.base) == was
    assert ground.apply().conflicts == []
    assert _seen(ground.base) == wanted
    assert ground.beside() == []
    if ground.recorded:
        assert ground.revert(ground.last).conflicts == []
        assert _seen(ground.base) == was
        assert ground.revert(ground.last).conflicts == []
        assert _seen(ground.base) == wanted
        assert ground.beside() == []
