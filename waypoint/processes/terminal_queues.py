"""The unread bytes of a session's terminals while CRIU dumps it: of the session's own terminal, and of those that its
programs have made (tmux, script, ssh).

CRIU reads the unread bytes of a terminal and writes them to the other side, so that they are echoed, changed and
reordered (criu/tty.c); a full terminal cannot be restored. So all bytes are taken out before the dump, saved in a file,
and put back from the file before a process runs, in the session and in each copy.
"""

import contextlib
import logging
import os
import termios
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.linux.storage import files
from waypoint.linux.tasks import pidfd, procfs
from waypoint.linux.tty import queues
from waypoint.linux.tty.queues import Queues
from waypoint.model.paths import QUEUES_FILE, TYPED_AHEAD_FILE

log = logging.getLogger(__name__)


class _Terminal(NamedTuple):
    """A terminal /dev/pts/`number`. `master`: a descriptor in this process."""

    number: int
    master: int
    is_slave_open: bool


def take(pids: Iterable[int], folder: Path) -> None:
    """Take all unread bytes out of the terminals of the processes, and save them in `folder`, the session's runtime
    folder. Makes no file if there are none.

    The processes must be frozen. If the bytes cannot be saved, they stay in the terminals. After another error they may
    be in the file, so call `put_back`.
    """
    taken: list[Queues] = []
    with contextlib.ExitStack() as opened:
        terminals = {one.number: one for one in _open_terminals(pids, opened)}
        try:
            for one in terminals.values():
                found = queues.take(one.master, is_slave_open=one.is_slave_open)
                if found is not None and not found.is_plain:
                    taken.append(found)
        finally:
            if taken:
                _save(taken, terminals, folder)
        for found in taken:  # only now that the file exists: `put_back` reads from it which output to start again
            if found.output and not found.stopped:
                queues.stop_output(terminals[found.number].master)


def _save(taken: list[Queues], terminals: Mapping[int, _Terminal], folder: Path) -> None:
    try:
        files.publish(str(folder / QUEUES_FILE), msgspec.msgpack.encode(taken), durable=False)
    except OSError:
        for found in taken:
            queues.put_back(terminals[found.number].master, found)
        raise


def are_taken(folder: Path) -> bool:
    return (folder / QUEUES_FILE).exists() or (folder / TYPED_AHEAD_FILE).exists()


def put_back(pids: Iterable[int], folder: Path) -> None:
    """Put the bytes that are saved in `folder` back into the terminals of the processes, and remove the file. Does
    nothing without the file. The processes must be frozen.

    If an earlier call was interrupted, continues it: no byte is put back twice.
    """
    if not are_taken(folder):
        return
    saved = {found.number: found for found in _load(folder)}
    with contextlib.ExitStack() as opened:
        for one in _open_terminals(pids, opened):
            try:
                if one.number in saved:
                    queues.put_back(one.master, saved[one.number])
            except (OSError, termios.error) as error:  # not tried again: the processes run afterwards
                log.warning("unread bytes of the terminal /dev/pts/%d are lost: %s", one.number, error)
    for name in (QUEUES_FILE, TYPED_AHEAD_FILE):
        (folder / name).unlink(missing_ok=True)


def _load(folder: Path) -> list[Queues]:
    try:
        return msgspec.msgpack.decode((folder / QUEUES_FILE).read_bytes(), type=list[Queues])
    except FileNotFoundError:  # earlier versions saved the input of the session's own terminal only
        return [Queues(0, typed=(folder / TYPED_AHEAD_FILE).read_bytes())]
    except msgspec.MsgspecError as error:
        log.warning("unread bytes of terminals are lost: %s: %s", folder / QUEUES_FILE, error)
        return []


def _open_terminals(pids: Iterable[int], opened: contextlib.ExitStack) -> list[_Terminal]:
    """Open one master of each terminal of the processes, until `opened` is closed."""
    masters, slaves = list[tuple[int, int]](), set[int]()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for fd, path in procfs.open_files(pid).items():
                folder, _, name = path.rpartition("/")
                if name == "ptmx":
                    masters.append((pid, fd))
                elif name.isdecimal() and folder.endswith("/pts"):
                    slaves.add(int(name))
    found: dict[int, _Terminal] = {}
    for pid, fd in masters:
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:  # another file that is called ptmx
            master = pidfd.take(pid, fd)
            closing.callback(os.close, master)
            number = queues.number_of(master)
            if number not in found:
                found[number] = _Terminal(number, master, number in slaves)
                opened.push(closing.pop_all())
    return list(found.values())
