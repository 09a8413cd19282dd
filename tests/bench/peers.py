"""Putting folders into the store, beside what others that keep folders take for the same: git, restic and borg.

Each is a program that is started anew, as they are used. restic always encrypts; of the others, and of the store, it is
not asked. git does not wait for the disk. Needs root; a peer that is missing has no figures.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.frame import Figure, Sizes, can_measure, ms_of_command, times_floor_at_most
from tests.places import ROOT
from tests.upper.grounds import MIB, temporary_btrfs
from waypoint.linux.snapshots import btrfs
from waypoint.store.content.opened import make_store

CHANGED, CHANGED_BYTES = 10, 2000
IN_ONE_FOLDER = 100
_PUT = [sys.executable, "-I", "-S", str(ROOT / "tests/bench/put_once.py")]


class Peer:
    """One that keeps folders, in a place of its own. `begin`: makes a repository; `put`: has it keep the folder; in
    both, {place} and {folder} are replaced.
    """

    def __init__(
        self, name: str, corner: Path, begin: Sequence[str], put: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._place = corner / name
        self._begin, self._put = begin, put
        self._env = {"PATH": os.environ["PATH"], "HOME": str(corner), "LANG": "C.UTF-8", **(env or {})}

    def renew(self, folder: Path) -> None:
        """Forget all."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._run(self._begin, folder)

    def put(self, folder: Path) -> float:
        """Milliseconds."""
        return self._run(self._put, folder)

    def _run(self, words: Sequence[str], folder: Path) -> float:
        script = " ".join(words).format(place=self._place, folder=folder)
        return ms_of_command(["sh", "-ec", script], self._env)


def _peers(corner: Path) -> list[Peer]:
    git = "git -c user.name=bench -c user.email=bench@localhost --git-dir={place} --work-tree={folder}"
    restic = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(corner / "restic-cache")}
    borg = {"BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes", "BORG_BASE_DIR": str(corner / "borg-base")}
    known = [
        Peer("git", corner, ["git init -q --bare {place}"], [git, "add -A &&", git, "commit -q -m next"]),
        Peer("restic", corner, ["restic init -q -r {place}"], ["restic backup -q -r {place} {folder}"], restic),
        Peer("borg", corner, ["borg init -e none {place}"], ["borg create {place}::$(date +%s.%N) {folder}"], borg),
    ]
    return [peer for peer in known if can_measure("peers", peer.name)]


class _Kept:
    """A subvolume with files, and a store that has its last snapshot."""

    def __init__(self, ground: Path, corner: Path, name: str, fill: Callable[[Path], None]) -> None:
        self.live = ground / name
        self._store = corner / f"store-{name}"
        self._number = 0
        self._before: Path | None = None
        self._root = ""
        btrfs.create_subvolume(str(self.live))
        fill(self.live)

    def renew(self) -> None:
        """A store without anything, and a snapshot that is to be put into it."""
        shutil.rmtree(self._store, ignore_errors=True)
        make_store(str(self._store)).close()
        self._root = ""
        self._snapshot()

    def change(self) -> None:
        for number in range(CHANGED):
            (self.live / f"d{number}" / f"f{number * IN_ONE_FOLDER + 7}").write_bytes(os.urandom(CHANGED_BYTES))

    def change_ours(self) -> None:
        self.change()
        self._snapshot()

    def _snapshot(self) -> None:
        self._number += 1
        self._now = self.live.with_name(f"{self.live.name}-{self._number}")
        btrfs.snapshot_subvolume(str(self.live), str(self._now), readonly=True)

    def put(self) -> float:
        """Milliseconds until the last snapshot is an image that survives a power loss."""
        result = self._store.with_suffix(".root")
        earlier = (self._root, str(self._before)) if self._root else ()
        taken_ms = ms_of_command([*_PUT, str(self._store), str(self._now), str(result), *earlier])
        if self._before is not None:
            btrfs.destroy_subvolume(str(self._before))
        self._root, self._before = result.read_text(), self._now
        return taken_ms


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    with temporary_btrfs((1024 if sizes.quick else 4096) * MIB) as ground:
        corner = ground.parent
        count, size_mib = (1000, 16) if sizes.quick else (10_000, 256)
        small = _Kept(ground, corner, "small", lambda folder: _fill(folder, count))
        large = _Kept(ground, corner, "large", lambda folder: _write(folder / "file", size_mib))
        peers, runs = _peers(corner), 1 if sizes.quick else 5
        yield [
            *(_new(f"{count} small files, new to it", small, peer, runs) for peer in peers),
            *(_changed(f"{CHANGED} of {count} files changed", small, peer, runs) for peer in peers),
            *(_new(f"{size_mib} MiB that do not get shorter, new to it", large, peer, runs) for peer in peers),
        ]


def _fill(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"d{number // IN_ONE_FOLDER}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%d " % number * 200)


def _write(path: Path, size_mib: int) -> None:
    path.write_bytes(os.urandom(size_mib * MIB))


def _new(what: str, kept: _Kept, peer: Peer, runs: int) -> Figure:
    def floor() -> float:
        peer.renew(kept.live)
        return peer.put(kept.live)

    return _figure(what, kept, floor, peer, kept.renew, runs)


def _changed(what: str, kept: _Kept, peer: Peer, runs: int) -> Figure:
    """After `_new` of the same."""

    def floor() -> float:
        kept.change()
        return peer.put(kept.live)

    return _figure(what, kept, floor, peer, kept.change_ours, runs)


def _figure(
    what: str, kept: _Kept, floor: Callable[[], float], peer: Peer, before: Callable[[], None], runs: int
) -> Figure:
    aim = times_floor_at_most(1)
    return Figure(f"store, {what}; {peer.name}", "ms", kept.put, floor, peer.name, aim, before, runs)
