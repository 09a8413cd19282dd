"""What a restore of CRIU's would bring back otherwise than it was, changed in the images of a complete dump.

* Periodic timers (timerfd) that have expired, and whose expiry nobody has read yet. The kernel starts such a timer
  again when the expiry is read, and tells of it that nothing remains until the next one. CRIU gives that back as the
  timer's value, which switches the timer off for ever.
* Unix sockets whose file was renamed, or linked to another name, after they were bound: servers do so that the name
  appears when they listen. CRIU binds them to the name that they were bound to, and nobody answers at the other one.
* The ids of the session's users, of a capture that comes from another home: each home has a range of its own.
* Processes that only seem to have ended (processes/left_out.py): CRIU's images say that they have ended with status 0.

Formats: images/{core,fdinfo,timerfd,sk-unix,userns}.proto in CRIU's source.
"""

import os
import signal
from collections.abc import Collection, Mapping

from waypoint.model.records import IdMap
from waypoint.processes.criu.lists import CORE_MAGIC, FILES, FILES_MAGIC, read_messages, write_messages
from waypoint.processes.criu.messages import Field, Message, Value, change_fields, decode, encode, replace_number

_TIMER, _SOCKET = 12, 16  # the fields of a file's entry; the others are fields in those
_SECONDS, _NANOSECONDS = 7, 8
_NAME, _NAME_FOLDER, _DELETED = 11, 14, 15
_EXIT_STATUS = (3, 2)  # core_entry.tc.exit_code, as of wait(2)
_USERNS_MAGIC = 0x55474906
_EXTENT = Message({"inner": Field(1, "uint32"), "outer": Field(2, "uint32"), "extent": Field(3, "uint32")})
_USERNS = Message({"uid_map": Field(1, _EXTENT, repeated=True), "gid_map": Field(2, _EXTENT, repeated=True)})
_FILE = Message(
    {
        "timer": Field(
            _TIMER,
            Message(
                {
                    "ticks": Field(5, "uint64"),
                    "vsec": Field(_SECONDS, "uint64"),
                    "vnsec": Field(_NANOSECONDS, "uint64"),
                    "isec": Field(9, "uint64"),
                    "insec": Field(10, "uint64"),
                }
            ),
        ),
        "socket": Field(_SOCKET, Message({"ino": Field(2, "uint32")})),
    }
)


def mend(images_fd: int, moved: Mapping[int, str]) -> None:
    """Change the images so that a restore starts such timers again, and binds such sockets to their present names.

    The next expiry of a timer comes one interval after the restore; those that nobody has read are there to be read.
    `moved`: the present paths of the sockets, by the sockets' inodes. Raises OSError; ValueError if an image is
    malformed.
    """
    entries = read_messages(images_fd, FILES, FILES_MAGIC)
    changed = [_mended(entry, moved) for entry in entries]
    if changed != entries:
        write_messages(images_fd, FILES, FILES_MAGIC, changed)


def give_ids(images_fd: int, ids: IdMap) -> None:
    """Change the images so that a restore makes a user namespace with this map, whatever it was. Raises OSError;
    ValueError if an image is malformed, or if the images have no user namespace, and the ids are shifted.
    """
    names = [name for name in os.listdir(images_fd) if name.startswith("userns-") and name.endswith(".img")]
    if ids.is_shifted and not names:
        raise ValueError("they have no user namespace")
    extents: list[Value] = [
        dict(zip(("inner", "outer", "extent"), map(int, line.split()), strict=True))
        for line in ids.lines().splitlines()
    ]
    wanted: dict[str, Value] = {"uid_map": extents, "gid_map": extents}
    for name in names:
        entries = read_messages(images_fd, name, _USERNS_MAGIC)
        if [decode(_USERNS, entry) for entry in entries] != [wanted]:
            write_messages(images_fd, name, _USERNS_MAGIC, [encode(_USERNS, wanted)])


def have_killed(images_fd: int, pids: Collection[int]) -> None:
    """Change the images so that a restore has these processes ended by SIGKILL, which are in the images as ended.
    `pids`: as the processes see them. Raises OSError; ValueError if an image is malformed.
    """
    for pid in pids:
        name = f"core-{pid}.img"
        entries = read_messages(images_fd, name, CORE_MAGIC)
        changed = [replace_number(entry, _EXIT_STATUS, int(signal.SIGKILL)) for entry in entries]
        write_messages(images_fd, name, CORE_MAGIC, changed)


def _mended(entry: bytes, moved: Mapping[int, str]) -> bytes:
    file = decode(_FILE, entry)
    timer, sock = file.get("timer"), file.get("socket")
    if isinstance(timer, dict) and timer["ticks"] and not (timer["vsec"] or timer["vnsec"]):
        # Both are 0 if the timer is not a periodic one.
        interval = {_SECONDS: timer["isec"], _NANOSECONDS: timer["insec"]}
        return change_fields(entry, {n: part for n, part in interval.items() if isinstance(part, int)}, within=_TIMER)
    path = moved.get(inode) if isinstance(sock, dict) and isinstance(inode := sock["ino"], int) else None
    if path is not None:
        name = os.fsencode(path) + b"\0"
        return change_fields(entry, {_NAME: name, _NAME_FOLDER: None, _DELETED: None}, within=_SOCKET)
    return entry
