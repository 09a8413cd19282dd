"""The unread bytes of a session's terminals while CRIU dumps it: of the session's own terminal, and of those that its
programs have made (tmux, script, ssh).

CRIU reads the unread bytes of a terminal and writes them to the other side, so that they are echoed, changed and
reordered (criu/tty.c); a full terminal cannot be restored. So all bytes are taken out before the dump, saved in a file,
and put back from the file before a process runs, in the session and in each copy.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from waypoint.linux.storage import files
from waypoint.linux.tasks import pidfd, procfs
from waypoint.linux.tty import queues
from waypoint.linux.tty.queues import Queues
from waypoint.model.paths import QUEUES_FILE, TYPED_AHEAD_FILE

log = logging.getLogger(__name__)


class Terminals:
    """Finds the terminals of a session. `look` remembers the descriptors of each process until their number changes, so
    that a second `look` needs little time.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, list[int], set[int]]] = {}

    def look(self, pids: Iterable[int]) -> None:
        """List the terminals that the processes have open. Processes that have ended are skipped."""
        before, self._seen = self._seen, {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                count = procfs.count_open_files(pid)
                found = before.get(pid)
                self._seen[pid] = found if found and found[0] == count else (count, *_listed(pid))

    def masters(self) -> Iterator[int]:
        """Open one master of each terminal, for the caller's step of the loop."""
        met = set[int]()
        for pid, (_count, masters, _slaves) in self._seen.items():
            for number in masters:
                try:
                    fd = pidfd.take(pid, number)
                except OSError:  # closed by now
                    continue
                try:
                    terminal = _number_of(fd)
                    if terminal is not None and terminal not in met:
                        met.add(terminal)
                        yield fd
                finally:
                    os.close(fd)

    @property
    def slaves(self) -> set[int]:
        """The numbers of the terminals whose slaves are open."""
        return set().union(*(slaves for _count, _masters, slaves in self._seen.values()))


def _number_of(fd: int) -> int | None:
    with contextlib.suppress(OSError):
        return queues.number_of(fd)
    return None  # a file that is called ptmx


def _listed(pid: int) -> tuple[list[int], set[int]]:
    """The descriptors of the process that may be masters, and the numbers of the slaves that it has open."""
    masters, slaves = [], set()
    for number, path in procfs.open_files(pid).items():
        name = os.path.basename(path)
        if name == "ptmx":
            masters.append(number)
        elif name.isdecimal() and path.startswith("/"):
            slaves.add(int(name))
    return masters, slaves


def take(terminals: Terminals, folder: Path) -> None:
    """Take all unread bytes out of the terminals and save them in `folder`, the session's runtime folder. Makes no file
    if there are none.

    All processes must be frozen, and `terminals.look` must have listed them since. After an error, call `put_back`.
    """
    taken: list[Queues] = []
    try:
        for master in terminals.masters():
            found = queues.take(master, is_slave_open=queues.number_of(master) in terminals.slaves)
            if found is not None and not found.is_plain:
                taken.append(found)
    finally:
        if taken:
            files.publish(str(folder / QUEUES_FILE), msgspec.msgpack.encode(taken), durable=False)
    with_output = {one.number for one in taken if one.output and not one.stopped}
    for master in terminals.masters() if with_output else ():
        if queues.number_of(master) in with_output:  # after the file exists, from which `put_back` starts output again
            queues.stop_output(master)


def are_taken(folder: Path) -> bool:
    return (folder / QUEUES_FILE).exists() or (folder / TYPED_AHEAD_FILE).exists()


def put_back(folder: Path, pids: Iterable[int]) -> None:
    """Put the bytes that are saved in `folder` back into the terminals of the processes, and remove the file. Does
    nothing without the file. The processes must be frozen.

    If an earlier call was interrupted, continues it: no byte is put back twice.
    """
    if not are_taken(folder):
        return
    saved = {one.number: one for one in _load(folder)}
    terminals = Terminals()
    terminals.look(pids)
    for master in terminals.masters():
        if one := saved.pop(queues.number_of(master), None):
            try:
                queues.put_back(master, one)
            except OSError as error:  # later would be no better, because the processes run then
                log.warning("unread bytes of the terminal /dev/pts/%d are lost: %s", one.number, error)
    for name in (QUEUES_FILE, TYPED_AHEAD_FILE):
        (folder / name).unlink(missing_ok=True)


def _load(folder: Path) -> list[Queues]:
    """Captures of earlier versions have a file with the input of the session's own terminal only."""
    try:
        return msgspec.msgpack.decode((folder / QUEUES_FILE).read_bytes(), type=list[Queues])
    except FileNotFoundError:
        return [Queues(0, typed=(folder / TYPED_AHEAD_FILE).read_bytes())]
