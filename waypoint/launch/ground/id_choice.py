"""Choosing the id map of a session, from the ids in the session to ids of the host (user_namespaces(7)).

*Shifted* ids are a range that no user of the machine has, so the session's root has no rights outside the session. If
shifted ids are not possible, the session has the host's own ids.

All sessions of a home share one range, because CRIU images contain the map, and a fork needs the map of the capture
from which it was made. (Files on disk keep the ids that they have in the session, because the mounts are idmapped.) The
sessions are isolated from each other by their namespaces, each owned by its own user namespace.
"""

import contextlib
import grp
import os
import pwd
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from waypoint.linux.calls import abilities
from waypoint.linux.storage import idmapped, mounts
from waypoint.linux.tasks import namespaces
from waypoint.model.paths import RUNTIME
from waypoint.model.records import HOST_IDS, MAX_MAP_BYTES, NOBODY, SHIFTED_IDS, IdMap, User

# Between the default range of sssd (up to 2,000,200,000) and that of systemd (from 2,147,352,576 on; systemd's
# UIDS-GIDS.md), and above the ranges that useradd(8) puts into /etc/subuid.
_LOWEST, _BEHIND, RANGE = 0x7740_0000, 0x7FFE_0000, 0x2_0000
_OWNERS = 0x1_8000  # offset in the range; ids from here on are in no session's map
_ROUTER = RANGE - 1  # offset of the id of the home's router
_NOTE = "ids"  # file in a home's runtime folder: the first id of its range, for other homes


def find_first(home_id: str) -> int:
    """Return the first id of a free range of RANGE ids for a new home. A range is free if no user or group of the
    machine, no entry in /etc/subuid or /etc/subgid, and no other open home uses it. The search starts at a place that
    depends on the home.
    """
    count = (_BEHIND - _LOWEST) // RANGE
    taken = list(_taken())
    for number in range(count):
        first = _LOWEST + (int(home_id, 16) + number) % count * RANGE
        if not any(begin < first + RANGE and first < begin + size for begin, size in taken):
            return first
    raise OSError(0, "all ranges of ids are taken", "/etc/subuid")


def is_of_sessions(uid: int) -> bool:
    """Whether `uid` is in the ranges of sessions."""
    return _LOWEST <= uid < _BEHIND


def _taken() -> Iterator[tuple[int, int]]:
    """The used ranges, each as its first id and its size."""
    yield from ((user.pw_uid, 1) for user in pwd.getpwall())
    yield from ((group.gr_gid, 1) for group in grp.getgrall())
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text(errors="replace").splitlines():
                _name, *numbers = line.split(":")
                if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
                    yield int(numbers[0]), int(numbers[1])
    for note in Path(RUNTIME).glob(f"*/{_NOTE}"):
        with contextlib.suppress(FileNotFoundError, ValueError):  # that home was removed meanwhile
            yield int(note.read_text()), RANGE


class IdChoice:
    """Chooses the id maps of a home's new sessions. The methods block."""

    def __init__(self, first: int, runtime: Path, scratch: Path) -> None:
        """`first`: the first id of the home's range; with 0 its sessions get the host's ids. `runtime`: the home's
        runtime folder, in which other homes read the range. `scratch`: a folder on a separate file system, in which
        empty folders are made for test mounts.
        """
        self._first = first
        self._scratch = scratch
        self._trying = threading.Lock()
        self._takes_overlays = False
        if first:
            (runtime / _NOTE).write_text(f"{first}\n")

    def choose(self, user: User, sources: Sequence[str]) -> tuple[IdMap, str]:
        """Return the id map for a session of `user`, and the reason if it is the host's. The reason is "" if the ids
        are shifted, or if config.json asks for the host's ids. `sources`: the files and folders of the host that the
        session will see.
        """
        more = tuple(sorted({one for one in (user.uid, user.gid, *user.groups) if one >= SHIFTED_IDS}))
        if not self._first:
            return HOST_IDS, ""
        ids = IdMap(first=self._first, more=more)
        if len(ids.lines()) > MAX_MAP_BYTES:  # leaving out some of the ids would reduce the user's rights
            said = f"{user.name} and their groups have {len(more)} ids from {SHIFTED_IDS} on"
            return HOST_IDS, f"{said}, and an id map in the kernel can contain only about 165 of them"
        why = self.why_not(sources)
        return (HOST_IDS, why) if why else (ids, "")

    def owner_of(self, session: str) -> int:
        """Return the host's user who is to own the user namespace of a new session. The kernel counts some resources
        (inotify) per owner, so each session gets its own owner: an id of the home's range that is in no session's map.

        Return 0, the host's root, if the daemon lacks a capability: the owner of a user namespace has all capabilities
        in it, and CRIU, which runs as root, needs them. A restored session's namespace is always owned by root.
        """
        if not self._first or not namespaces.has_all_capabilities():
            return 0
        return self._first + _OWNERS + zlib.crc32(session.encode()) % (_ROUTER - _OWNERS)

    def owner_of_router(self) -> int:
        """Return the host's user who owns the home's router and runs its pasta: an id of the home's range that is used
        for nothing else, or the user nobody if the home has no range.
        """
        if not abilities.own().owners:
            return os.geteuid()
        return self._first + _ROUTER if self._first else NOBODY

    def why_not(self, sources: Sequence[str]) -> str:
        """Return which of `sources` cannot be idmapped, and why; "" if all can, also as layers of an overlay."""
        if not self._first:
            return "the home's config.json asks for the host's ids"
        try:
            userns = idmapped.namespace(IdMap(first=self._first).lines())
        except OSError as error:
            return f"no user namespace can be made: {error.strerror or error}"
        return next(filter(None, (self._try(source, userns) for source in sources)), "")

    def _try(self, source: str, userns: int) -> str:
        try:
            os.close(idmapped.clone(source, userns))
            with self._trying:
                if not self._takes_overlays and os.path.isdir(source):
                    self._mount_overlay(source, userns)
                    self._takes_overlays = True
        except FileNotFoundError:  # it was unmounted since; the start of the session will report that
            return ""
        except OSError as error:
            return f"{source} cannot be mounted with other owners (idmapped): {error.strerror or error}"
        return ""

    def _mount_overlay(self, source: str, userns: int) -> None:
        """Mount an overlay over an idmapped mount, which kernels before 5.19 refuse. Raises OSError."""
        place, lower, empty = (self._scratch / name for name in ("ids-probe", "ids-lower", "ids-empty"))
        for folder in (place, lower, empty):
            folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as undo:
            idmapped.attach(source, lower, userns)
            undo.callback(mounts.umount, lower, mounts.MNT_DETACH)
            with idmapped.acting_as(self._first, self._first):
                mounts.mount("overlay", place, "overlay", mounts.MS_RDONLY, f"lowerdir={lower}:{empty}")
            undo.callback(mounts.umount, place, mounts.MNT_DETACH)
