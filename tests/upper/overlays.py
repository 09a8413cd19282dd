"""Overlays with random histories: a base, and upper directories in which a random program has worked."""

import contextlib
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from waypoint.linux.storage import mounts

OPTIONS = "index=off,metacopy=off,redirect_dir={},xino=off,nfs_export=off"
_NAMES = [b"a", b"b", b"c", b"new\nline", b"\xff\xfe", b"a b"]
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
Picture = dict[bytes, tuple[object, ...]]


class Stack(NamedTuple):
    """A folder of a tmpfs in which `base` and upper directories lie."""

    folder: Path

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def upper(self, name: str) -> Path:
        return self.folder / name / "upper"

    @contextlib.contextmanager
    def writable(self, name: str) -> Iterator[Path]:
        """The overlay of the upper directory `name`, as a session has it."""
        for part in ("upper", "work", "merged"):
            (self.folder / name / part).mkdir(parents=True, exist_ok=True)
        where = self.folder / name
        layers = f"lowerdir={self.base},upperdir={where}/upper,workdir={where}/work"
        with _mounted(where / "merged", f"{layers},{OPTIONS.format('on')}") as merged:
            yield merged

    @contextlib.contextmanager
    def view(self, name: str = "") -> Iterator[Path]:
        """A read-only view of the upper directory `name`, or of the base alone."""
        place = self.folder / f"view-{name}"
        place.mkdir(exist_ok=True)
        (self.folder / "empty").mkdir(exist_ok=True)
        above = self.upper(name) if name else self.folder / "empty"
        options = f"lowerdir={above}:{self.base},{OPTIONS.format('follow')}"
        with _mounted(place, options, mounts.MS_RDONLY) as merged:
            yield merged

    def copy_upper(self, name: str, copy: str) -> None:
        """As a snapshot does. Inodes differ, so nothing counts as the same entry."""
        (self.folder / copy).mkdir()
        subprocess.run(["cp", "-a", self.upper(name), self.upper(copy)], check=True)


@contextlib.contextmanager
def _mounted(place: Path, options: str, flags: int = 0) -> Iterator[Path]:
    mounts.mount("overlay", place, "overlay", flags, options)
    try:
        yield place
    finally:
        mounts.umount(place)


def make_stack(corner: Path) -> Stack:
    mounts.mount("tmpfs", corner, "tmpfs")
    stack = Stack(corner / "stack")
    stack.base.mkdir(parents=True)
    return stack


def random_history(folder: Path, choose: random.Random, steps: tuple[int, int, int]) -> Stack:
    """A base with random files, a random upper "one" over it, and "other", a copy of "one" with random changes.
    `steps`: the numbers of random things that are done for each.
    """
    stack = Stack(folder)
    stack.base.mkdir(parents=True)
    change_at_random(stack.base, choose, steps[0])
    with stack.writable("one") as merged:
        change_at_random(merged, choose, steps[1])
    stack.copy_upper("one", "other")
    with stack.writable("other") as merged:
        change_at_random(merged, choose, steps[2])
    return stack


def change_at_random(root: Path, choose: random.Random, steps: int) -> None:
    """Do `steps` random things below `root`, as programs of a session would."""
    top = os.fsencode(root)
    for _ in range(steps):
        places = [top, *_below(top)]
        one, other = choose.choice(places), choose.choice(places)
        folder = other if stat.S_ISDIR(os.lstat(other).st_mode) else os.path.dirname(other)
        new = os.path.join(folder, choose.choice(_NAMES))
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            _do_one(choose, one, new, top)


def _do_one(choose: random.Random, one: bytes, new: bytes, top: bytes) -> None:
    is_folder = stat.S_ISDIR(os.lstat(one).st_mode)
    match choose.randrange(11):
        case 0 | 1 | 2:
            # A link is never written through (ELOOP).
            with contextlib.suppress(OSError), open(os.open(new, _NEW), "wb") as file:
                file.write(choose.randbytes(choose.choice([0, 1, 5])))
        case 3 | 4:
            os.mkdir(new)
        case 5 if one != top:
            shutil.rmtree(one) if is_folder else os.unlink(one)
        case 6 if one != top and not new.startswith(one):
            with contextlib.suppress(OSError):  # such as a folder that is not empty
                os.rename(one, new)
        case 7:
            os.symlink(choose.choice([b"/no/such/file", b"a", b".."]), new)
        case 8 if not is_folder:
            os.link(one, new, follow_symlinks=False)
        case 9 if not os.path.islink(one):
            os.chmod(one, choose.choice([0o700, 0o755, 0o644, 0o4755]))
            os.chown(one, choose.choice([0, 1]), 0)
        case 10 if not os.path.islink(one):
            os.setxattr(one, "user.kept", choose.randbytes(2))


def _below(top: bytes) -> list[bytes]:
    found = [os.path.join(above, name) for above, folders, files in os.walk(top) for name in (*folders, *files)]
    return sorted(found)


def picture(root: Path, *, with_times: bool = False) -> Picture:
    """All that a copy of the tree must have, by relative path. `with_times`: also the times of change."""
    top = os.fsencode(root)
    times = {path: (os.lstat(path).st_mtime_ns,) if with_times else () for path in _below(top)}
    return {os.path.relpath(path, top): (*_facts(path), *times[path]) for path in times}


def _facts(path: bytes) -> tuple[object, ...]:
    facts = os.lstat(path)
    content: object = None
    if stat.S_ISLNK(facts.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(facts.st_mode):
        content = Path(os.fsdecode(path)).read_bytes()
    kept = {
        name: os.getxattr(path, name, follow_symlinks=False)
        for name in os.listxattr(path, follow_symlinks=False)
        if not name.startswith("trusted.")
    }
    return stat.S_IFMT(facts.st_mode), content, stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid, kept
