"""Whether captured processes notice that time passes while they stand restored and frozen: their monotonic clock goes
on from the restore.

They do not if each of their tasks waits in a system call that has no timeout, and none of their timers runs. CRIU's
images tell that: core-TID.img has the registers of a task and the timers of its process, files.img the timers among the
files. Formats: images/{core,core-x86,timer,timerfd}.proto of CRIU's source. x86-64 only, and only Waypoint's own CRIU
marks in the images which calls were interrupted (criu/patches/10-exact-again.patch).
"""

import os
from collections.abc import Callable, Iterator, Mapping

from waypoint.processes.criu.image_files import FILES, FILES_MAGIC, read_messages
from waypoint.processes.criu.messages import Field, Message, Value, decode

_CORE_MAGIC = 0x55053847
_ITIMER = Message({"sec": Field(3, "uint64"), "usec": Field(4, "uint64")})
_POSIX_TIMER = Message({"sec": Field(9, "uint64"), "nsec": Field(10, "uint64")})
_TIMERS = Message({"real": Field(1, _ITIMER), "posix": Field(4, _POSIX_TIMER, repeated=True)})
_ARGUMENTS = ("di", "si", "dx", "r10", "r8")
_REGISTERS = Message(
    {
        "r10": Field(8, "uint64"),
        "r8": Field(10, "uint64"),
        "ax": Field(11, "uint64"),
        "dx": Field(13, "uint64"),
        "si": Field(14, "uint64"),
        "di": Field(15, "uint64"),
        "orig_ax": Field(16, "uint64"),
        "mode": Field(28, "uint32"),
    }
)
_CORE = Message(
    {
        "machine": Field(1, "uint32"),
        "thread": Field(2, Message({"registers": Field(2, _REGISTERS)})),
        "task": Field(3, Message({"state": Field(1, "uint32"), "timers": Field(7, _TIMERS)})),
    }
)
_FILE = Message({"timer": Field(12, Message({"sec": Field(7, "uint64"), "nsec": Field(8, "uint64")}))})
_X86_64, _COMPAT = 1, 2
_ENDED = (2, 6)  # TASK_DEAD, TASK_ZOMBIE
_RESTARTED = frozenset((1 << 64) - number for number in (512, 513, 514))  # ERESTARTSYS, NOINTR, NOHAND
_FUTEX_COMMAND, _FUTEX_WAITS = 127, (0, 9)
_CONNECTION = "tcp-stream-"  # the beginning of the names of images with a TCP connection


def _always(args: list[int]) -> bool:
    return True


def _is_negative(number: int) -> bool:
    return bool(number & 1 << 31)


_WAITS: Mapping[int, Callable[[list[int]], bool]] = {
    **dict.fromkeys((0, 19, 45, 47, 1, 20, 44, 46), _always),  # read, readv, recvfrom, recvmsg, and those that write
    **dict.fromkeys((34, 43, 61, 73, 130, 247, 288), _always),  # pause, accept, wait4, flock, sigsuspend, waitid
    7: lambda args: _is_negative(args[2]),  # poll
    23: lambda args: not args[4],  # select
    128: lambda args: not args[2],  # rt_sigtimedwait
    202: lambda args: args[1] & _FUTEX_COMMAND in _FUTEX_WAITS and not args[3],
    232: lambda args: _is_negative(args[3]),  # epoll_wait
    270: lambda args: not args[4],  # pselect6
    271: lambda args: not args[2],  # ppoll
    281: lambda args: _is_negative(args[3]),  # epoll_pwait
    441: lambda args: not args[3],  # epoll_pwait2
}
"""By number of a system call on x86-64: whether a call with these five arguments waits without a timeout."""


def is_timeless(images_fd: int) -> bool:
    """Whether the processes notice nothing of the time. Raises OSError; ValueError if an image is malformed."""
    timers = (decode(_FILE, one).get("timer") for one in read_messages(images_fd, FILES, FILES_MAGIC))
    return not any(map(_runs, timers)) and all(map(_waits, _cores(images_fd)))


def has_connections(images_fd: int) -> bool:
    """Whether the images have a TCP connection, whose timers run in the kernel while its processes stand."""
    return any(name.startswith(_CONNECTION) for name in os.listdir(images_fd))


def _cores(images_fd: int) -> Iterator[dict[str, Value]]:
    for name in os.listdir(images_fd):
        if name.startswith("core-"):
            messages = read_messages(images_fd, name, _CORE_MAGIC)
            if not messages:
                raise ValueError(f"{name} is empty")
            yield decode(_CORE, messages[0])


def _waits(core: dict[str, Value]) -> bool:
    task, thread = core.get("task"), core.get("thread")
    if isinstance(task, dict):
        if task.get("state") in _ENDED:
            return True
        timers = task.get("timers")
        if isinstance(timers, dict):
            posix = timers.get("posix", [])
            if _runs(timers.get("real")) or (isinstance(posix, list) and any(map(_runs, posix))):
                return False
    registers = thread.get("registers") if isinstance(thread, dict) else None
    if core.get("machine") != _X86_64 or not isinstance(registers, dict) or registers.get("mode") == _COMPAT:
        return False
    numbers = [registers.get(name) for name in ("ax", "orig_ax", *_ARGUMENTS)]
    call, state, *args = (one if isinstance(one, int) else 0 for one in numbers)
    return state in _RESTARTED and call in _WAITS and _WAITS[call](args)


def _runs(timer: Value | None) -> bool:
    return isinstance(timer, dict) and any(timer.values())
