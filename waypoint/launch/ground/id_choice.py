"""Choosing the host's ids for the users of a session: a range that no user of the machine has, so that the session's
root has no rights outside (user_namespaces(7)); or, where that is not possible, the host's own ids.

All sessions of a home share one range, because the images of processes contain the map, and a fork needs the map of its
origin. (Files on disk keep the session's own ids, by idmapped mounts.) Sessions are isolated from each other by their
namespaces, each owned by its own user namespace.
"""

import contextlib
import grp
import os
import pwd
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

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
    """The first id of a free range of RANGE ids for a new home: not used by users and groups of the machine,
    /etc/subuid, /etc/subgid or other open homes. The search starts at a place that depends on the home.
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
    """Chooses the ids of a home's new sessions. The methods block."""

    def __init__(self, first: int, runtime: Path, scratch: Path) -> None:
        """`first`: the first id of the home's range; 0: its sessions get the host's ids. `runtime`: the home's runtime
        folder, which other homes read. `scratch`: gets some empty folders; on a separate file system.
        """
        self._first = first
        self._scratch = scratch
        self._trying = threading.Lock()
        self._takes_overlays = False
        if first:
            (runtime / _NOTE).write_text(f"{first}\n")

    def choose(self, user: User, sources: Sequence[str]) -> tuple[IdMap, str]:
        """The ids of a session of `user`, and the reason why they are the host's: "" if they are shifted, or if
        config.json demands the host's. `sources`: the files and folders of the host that the session will see.
        """
        more = tuple(sorted({one for one in (user.uid, user.gid, *user.groups) if one >= SHIFTED_IDS}))
        if not self._first:
            return HOST_IDS, ""
        ids = IdMap(first=self._first, more=more)
        if len(ids.lines()) > MAX_MAP_BYTES:  # a map without some of them would reduce the user's rights
            said = f"{user.name} and their groups have {len(more)} ids from {SHIFTED_IDS} on"
            return HOST_IDS, f"{said}, and the kernel takes no map of so many: about 165"
        why = self.why_not(sources)
        return (HOST_IDS, why) if why else (ids, "")

    def owner_of(self, session: str) -> int:
        """The host's user who owns the user namespace of a new session. The kernel counts some resources (inotify) for
        this user, so each session gets its own owner: an id of the home's range that is in no session's map.

        0, the host's root, if the daemon lacks a capability: only the owner has all capabilities in the namespace, and
        CRIU needs them. Root owns the namespace of a restored session in any case.
        """
        if not self._first or not namespaces.has_all_capabilities():
            return 0
        return self._first + _OWNERS + zlib.crc32(session.encode()) % (_ROUTER - _OWNERS)

    def owner_of_router(self) -> int:
        """The host's user who owns the router of the home and runs its pasta: an id of the home's range that nothing
        else uses; the user nobody if the home has no range.
        """
        return self._first + _ROUTER if self._first else NOBODY

    def why_not(self, sources: Sequence[str]) -> str:
        """Which of `sources` cannot be idmapped and why; "" if all can, also below overlays."""
        if not self._first:
            return "the home's config.json wants that"
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
        except FileNotFoundError:  # unmounted meanwhile: the start of the session will report it
            return ""
        except OSError as error:
            return f"{source} cannot be shown with other owners: {error.strerror or error}"
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
