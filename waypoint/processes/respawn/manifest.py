"""The manifest of the programs of a session: what is to be started again where the processes cannot be kept."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from waypoint.linux.net import sockets
from waypoint.linux.tasks import procfs
from waypoint.model.paths import OWN_FOLDER
from waypoint.processes.respawn.redact import command_line

MOST_PROGRAMS = 256
MOST_BYTES = 1 << 20  # of arguments and of environment of one program
MOST_OF_ALL = 16 << 20  # of both of all programs
_NO_TEXT = "its folder, or a file that it reads or writes, has a name that is no UTF-8"
_MOST_WORDS, _MOST_OF_WORD = 64, 256  # of the arguments of a program that is lost

Role = Literal["foreground", "job", "service"]
"""What a program was to the session: in the terminal's foreground, a job of the shell in the background, or neither:
its parent had ended, or it was run from outside."""


class StandardStream(msgspec.Struct, frozen=True, kw_only=True):
    """Standard input, output or error of a program. `path`: the file, "" if it was none that has a name. `peer`: the
    number of the pipe. `offset`: where in the file. `append`: it was opened to append.
    """

    number: int
    path: str = ""
    pipe: int = 0
    offset: int = 0
    append: bool = False
    terminal: bool = False


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One program, which has started all that is below it. `ports`: those on which it, or what is below it, listens.

    `lost`: in words, why it cannot be started again; "" if it can. `pids`: its own and of what is below it, as the host
    saw them. `ended`: in a live capture it is the program that was not kept alive.
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
    pids: list[int] = []
    ended: bool = False

    @property
    def shown(self) -> str:
        """The command line for people, without secrets."""
        return command_line(word.decode(errors="backslashreplace") for word in self.argv)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All programs, in the order in which they were started. `omitted`: how many are too many to be in it."""

    programs: list[Program]
    omitted: int = 0

    @property
    def ended(self) -> "Manifest":
        """Of a live capture's: what was not kept alive, and is to be started again in its copies."""
        return Manifest(programs=[one for one in self.programs if one.ended])


class Family(NamedTuple):
    """The processes of a session: pid 1, and the shell, the leader of its terminal (0: none)."""

    init: int
    shell: int
    members: Sequence[int]


def collect(family: Family) -> Manifest:
    """The manifest of the programs that run now. Of a session that does not stand still it may have what was true of
    each at another moment.
    """
    stats: dict[int, procfs.Stat] = {}
    for pid in family.members:
        with contextlib.suppress(ProcessLookupError):
            stats[pid] = procfs.stat(pid)
    heads = [pid for pid in stats if pid not in (family.init, family.shell) and _is_head(pid, stats, family)]
    heads.sort(key=lambda pid: (stats[pid].start_ticks, pid))
    children = defaultdict[int, list[int]](list)
    for pid, stat in stats.items():
        children[stat.parent].append(pid)
    seen = _Seen(family, stats, _listening(family.init) if heads else {}, _rights(family.shell))
    programs: list[Program] = []
    room = MOST_OF_ALL
    for pid in heads[:MOST_PROGRAMS]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            found = _program(_below(pid, children), seen)
            size = sum(map(len, found.argv)) + sum(map(len, found.environ))
            if size > room or found.lost:
                why = found.lost or "the arguments and environments of all programs are too large"
                found = msgspec.structs.replace(found, argv=_for_people(found.argv), environ=[], lost=why)
            else:
                room -= size
            programs.append(found)
    return Manifest(programs=programs, omitted=max(0, len(heads) - MOST_PROGRAMS))


def as_far_as_now(program: Program) -> Program:
    """The program, with the place to which it has read its standard input by now."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        pid = program.pids[0]
        streams = [
            msgspec.structs.replace(one, offset=procfs.position(pid, 0)[0]) if one.number == 0 and one.path else one
            for one in program.streams
        ]
        return msgspec.structs.replace(program, streams=streams)
    return program


def _for_people(argv: Sequence[bytes]) -> list[bytes]:
    """As much of the arguments as is shown."""
    return [word[:_MOST_OF_WORD] for word in argv[:_MOST_WORDS]]


def _is_head(pid: int, stats: dict[int, procfs.Stat], family: Family) -> bool:
    """Whether nothing that is started again starts this process: it is a child of the shell, of pid 1, or of a script
    of Waypoint's own (`waypoint run`), which is none itself.
    """
    if stats[pid].state in "ZX" or _is_ours(pid):
        return False
    parent = stats[pid].parent
    return parent in (family.init, family.shell) or parent not in stats or (parent != pid and _is_ours(parent))


def _is_ours(pid: int) -> bool:
    """Whether the process runs one of Waypoint's own scripts."""
    with contextlib.suppress(ProcessLookupError):
        return any(word.startswith(f"/{OWN_FOLDER}/") for word in procfs.command_line(pid)[1:2])
    return False


class _Seen(NamedTuple):
    """What is looked at once. `listening`: as `_listening`. `shells`: the rights of the shell, None if it has none that
    could be seen.
    """

    family: Family
    stats: dict[int, procfs.Stat]
    listening: dict[int, str]
    shells: procfs.Rights | None


def _program(below: list[int], seen: _Seen) -> Program:
    """`below`: the process, and all that descend from it."""
    pid = below[0]
    stat, listening = seen.stats[pid], seen.listening
    argv = procfs.raw(pid, "cmdline", MOST_BYTES)
    environ = procfs.raw(pid, "environ", MOST_BYTES)
    is_job = stat.parent == seen.family.shell
    role: Role = "service" if not is_job else "foreground" if stat.foreground == stat.group else "job"
    files = procfs.open_files(pid)
    sockets_of = (path for one in below for path in _files(one)) if listening else ()
    inodes = {int(path[8:-1]) for path in sockets_of if path.startswith("socket:[")}
    folder = procfs.folder(pid)
    streams = [_stream(pid, number, files[number]) for number in (0, 1, 2) if number in files]
    is_text = all(map(_is_text, (folder, *(one.path for one in streams))))
    return Program(
        role=role,
        group=stat.group,
        argv=argv.split(b"\0")[:-1],
        folder=folder if is_text else "",
        environ=environ.split(b"\0")[:-1],
        streams=streams if is_text else [],
        ports=sorted({listening[inode] for inode in inodes & listening.keys()}),
        started=stat.start_ticks,
        below=len(below) - 1,
        lost=_why_lost(pid, seen, argv, environ) or ("" if is_text else _NO_TEXT),
        pids=below,
    )


def _why_lost(pid: int, seen: _Seen, argv: bytes, environ: bytes) -> str:
    stat, shell = seen.stats[pid], seen.stats.get(seen.family.shell)
    is_child = stat.parent == seen.family.shell
    if shell is not None and stat.program == shell.program and is_child:
        return "it is a part of the shell itself, a subshell"
    if shell is not None and not _has_rights_of_shell(procfs.rights(pid), seen.shells, is_child=is_child):
        return "it had other rights than the shell: another user's, or those of a sandbox"
    if max(len(argv), len(environ)) >= MOST_BYTES:
        return "its arguments or its environment are too large"
    if b": " in argv.partition(b"\0")[0]:
        return "it has changed its own command line"
    return "" if argv.strip(b"\0") else "it has no arguments"


def _is_text(path: str) -> bool:
    """Whether a record can have the path, which has the bytes that are no UTF-8 as surrogates."""
    return path.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in path)


def _rights(pid: int) -> procfs.Rights | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return procfs.rights(pid) if pid else None
    return None


def _has_rights_of_shell(own: procfs.Rights, shells: procfs.Rights | None, *, is_child: bool) -> bool:
    """Whether the shell, which will start the program, gives it no rights that it had given up. What the shell has
    started itself may have got more by that (sudo), and will again.
    """
    if shells is None:
        return False
    may_gain = is_child and own.uids <= shells.uids | {0}
    return own.walls == shells.walls and (may_gain or own.own == shells.own)


def _below(pid: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    """The process, and all that descend from it."""
    found, left = {pid: None}, [pid]
    while left:
        new = [child for child in children.get(left.pop(), ()) if child not in found]
        found.update(dict.fromkeys(new))
        left += new
    return list(found)


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


def _listening(pid: int) -> dict[int, str]:
    """The ports on which something listens in the network namespace of `pid`, by the inode of the socket."""
    return {found.inode: f"tcp {found.port}" for found in sockets.listening(pid)}
