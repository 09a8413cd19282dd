"""What a restore of CRIU's would bring back otherwise than it was, changed in the images of a complete dump.

* Periodic timers (timerfd) that have expired, and whose expiry nobody has read yet. The kernel starts such a timer
  again when the expiry is read, and tells of it that nothing remains until the next one. CRIU gives that back as the
  timer's value, which switches the timer off for ever.
* Unix sockets whose file was renamed, or linked to another name, after they were bound: servers do so that the name
  appears when they listen. CRIU binds them to the name that they were bound to, and nobody answers at the other one.

Formats: images/{fdinfo,timerfd,sk-unix}.proto in CRIU's source.
"""

import os
from collections.abc import Mapping

from waypoint.processes.criu.lists import FILES, FILES_MAGIC, read_messages, write_messages
from waypoint.processes.criu.messages import Field, Message, change_fields, decode

_TIMER, _SOCKET = 12, 16  # the fields of a file's entry; the others are fields in those
_SECONDS, _NANOSECONDS = 7, 8
_NAME, _NAME_FOLDER, _DELETED = 11, 14, 15
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
