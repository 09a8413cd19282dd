"""The manifest of a session's programs, which are started again if the processes cannot be restored."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from waypoint.linux.net import sockets
from waypoint.linux.tasks import procfs
from waypoint.model.paths import OWN_FOLDER
from waypoint.processes.respawn.redact import command_line

MOST_PROGRAMS = 256
MOST_BYTES = 1 << 20  # the limit for one program's arguments, and the limit for its environment
MOST_OF_ALL = 16 << 20  # the limit for the arguments and environments of all programs together, in bytes
_MOST_WORDS, _MOST_OF_WORD = 64, 256  # number and length of the kept arguments of a lost program

Role = Literal["foreground", "job", "service"]
"""`service`: neither in the terminal's foreground nor a background job of the shell: its parent had ended, or it was
started with `waypoint run`."""


class StandardStream(msgspec.Struct, frozen=True, kw_only=True):
    """Standard input, output or error of a program. `path`: the file, "" if it has no name. `pipe`: the number of the
    pipe. `offset`: the position in the file. `append`: it was opened with O_APPEND.
    """

    number: int
    path: str = ""
    pipe: int = 0
    offset: int = 0
    append: bool = False
    terminal: bool = False


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One program with its descendants (`below`: their number). `ports`: those on which they listen. `lost`: the reason
    why the program cannot be started again, or "".
    """

    role: Role
    group: int
    argv: list[bytes]
    folder: str
    environ: list[bytes]
    streams: list[StandardStream]
    ports: list[str]
    started: int
    below: int
    lost: str = ""

    @property
    def shown(self) -> str:
        """The command line without secrets."""
        return command_line(word.decode(errors="backslashreplace") for word in self.argv)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first MOST_PROGRAMS programs in the order of their start. `omitted`: the number of the others."""

    programs: list[Program]
    omitted: int = 0


class Family(NamedTuple):
    """The processes of a session: pid 1, and the shell, the leader of its terminal (0: none)."""

    init: int
    shell: int
    members: Sequence[int]


def collect(family: Family) -> Manifest:
    """The manifest of the programs that run now. The session must be frozen; CRIU may be dumping it. Takes 0.3 ms for
    each program.
    """
    stats: dict[int, procfs.Stat] = {}
    for pid in family.members:
        with contextlib.suppress(ProcessLookupError):
            stats[pid] = procfs.stat(pid)
    heads = [pid for pid in stats if pid not in (family.init, family.shell) and _is_head(pid, stats, family)]
    heads.sort(key=lambda pid: (stats[pid].start_ticks, pid))
    listening = {inode: f"tcp {port}" for inode, port in sockets.listening(family.init).items()} if heads else {}
    programs: list[Program] = []
    room = MOST_OF_ALL
    for pid in heads[:MOST_PROGRAMS]:
        with contextlib.suppress(OSError):
            found = _program(pid, stats, family, listening)
            size = sum(map(len, found.argv)) + sum(map(len, found.environ))
            if size > room or found.lost:
                why = found.lost or "the arguments and environments of all programs are too large"
                found = msgspec.structs.replace(
                    found, argv=[word[:_MOST_OF_WORD] for word in found.argv[:_MOST_WORDS]], environ=[], lost=why
                )
            else:
                room -= size
            programs.append(found)
    return Manifest(programs=programs, omitted=max(0, len(heads) - MOST_PROGRAMS))


def _is_head(pid: int, stats: dict[int, procfs.Stat], family: Family) -> bool:
    """Whether this process must be started again by Waypoint, and not by another program of the manifest: it is a child
    of the shell, of pid 1, or of a script of Waypoint (`waypoint run`), and is not such a script itself.
    """
    if stats[pid].state in "ZX" or _is_ours(pid):
        return False
    parent = stats[pid].parent
    return parent in (family.init, family.shell) or parent not in stats or (parent != pid and _is_ours(parent))


def _is_ours(pid: int) -> bool:
    """Whether the process runs one of Waypoint's own scripts."""
    with contextlib.suppress(OSError):
        return any(word.startswith(f"/{OWN_FOLDER}/") for word in procfs.command_line(pid)[1:2])
    return False


def _program(pid: int, stats: dict[int, procfs.Stat], family: Family, listening: dict[int, str]) -> Program:
    stat = stats[pid]
    below = _below(pid, stats)
    argv = procfs.raw(pid, "cmdline", MOST_BYTES)
    environ = procfs.raw(pid, "environ", MOST_BYTES)
    is_job = stat.parent == family.shell
    role: Role = "service" if not is_job else "foreground" if stat.foreground == stat.group else "job"
    files = procfs.open_files(pid)
    inodes = {int(path[8:-1]) for one in below for path in _files(one) if path.startswith("socket:[")}
    return Program(
        role=role,
        group=stat.group,
        argv=argv.split(b"\0")[:-1],
        folder=procfs.folder(pid),
        environ=environ.split(b"\0")[:-1],
        streams=[_stream(pid, number, files[number]) for number in (0, 1, 2) if number in files],
        ports=sorted({listening[inode] for inode in inodes & listening.keys()}),
        started=stat.start_ticks,
        below=len(below) - 1,
        lost=_why_lost(pid, stats, family, argv, environ),
    )


def _why_lost(pid: int, stats: dict[int, procfs.Stat], family: Family, argv: bytes, environ: bytes) -> str:
    shell = stats.get(family.shell)
    if shell is not None and stats[pid][-2:] == shell[-2:] and stats[pid].parent == family.shell:
        return "it is a subshell of the session's shell"
    if shell is not None and not _has_rights_of_shell(pid, family.shell, is_child=stats[pid].parent == family.shell):
        return "it ran with other rights than the shell: as another user, or in a sandbox"
    if max(len(argv), len(environ)) >= MOST_BYTES:
        return "its arguments or its environment are too large"
    if b": " in argv.partition(b"\0")[0]:
        return "it has changed its own command line"
    return "" if argv.strip(b"\0") else "it has no arguments"


def _has_rights_of_shell(pid: int, shell: int, *, is_child: bool) -> bool:
    """Whether the program would get the same rights again if the shell started it. A child of the shell may have more
    rights than the shell, for example sudo: it gains them again after its start.
    """
    own, shells = procfs.rights(pid), procfs.rights(shell)
    may_gain = is_child and own.uids <= shells.uids | {0}
    return own.walls == shells.walls and (may_gain or own.own == shells.own)


def _below(pid: int, stats: dict[int, procfs.Stat]) -> list[int]:
    """The pids of the process and its descendants."""
    found = {pid}
    for one in sorted(stats, key=lambda each: stats[each].start_ticks):
        if stats[one].parent in found:
            found.add(one)
    return sorted(found)


def _files(pid: int) -> Iterable[str]:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return procfs.open_files(pid).values()
    return ()


def _stream(pid: int, number: int, path: str) -> StandardStream:
    if path.startswith("pipe:["):
        return StandardStream(number=number, pipe=int(path[6:-1]))
    if path.startswith(("/dev/pts/", "/dev/tty")):
        return StandardStream(number=number, terminal=True)
    if not path.startswith("/") or path.endswith(" (deleted)"):
        return StandardStream(number=number)
    offset, flags = procfs.position(pid, number)
    return StandardStream(number=number, path=path, offset=offset, append=bool(flags & os.O_APPEND))
