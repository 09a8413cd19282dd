"""The reasons for which CRIU gives up that are known: its words, what they mean, what to do. Data only.

Each row has a recorded log in tests/processes/logs. Rows are tried from the top: the more telling ones stand first.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """`pattern` is searched in CRIU's error lines. Its named groups fill the braces of `meaning`."""

    name: str
    pattern: str
    meaning: str
    next_step: str


CAUSES: tuple[Cause, ...] = (
    Cause(
        "disk-full",
        r"No space left on device",
        "the disk for the image is full",
        "make room on the disk that holds the home",
    ),
    Cause(
        "socket-options",
        r"Can't get 1:(?:16|34) opt: Operation not supported",
        "this CRIU is too old for this kernel: no process with a TCP or UDP socket can be dumped since Linux 6.16",
        "run `waypoint setup` without WAYPOINT_CRIU; it installs CRIU 4.2 or newer",
    ),
    Cause(
        "vdso",
        r"vdso: (?:Unexpected rt vDSO area bounds|Failed to fill self vdso symtable)",
        "this CRIU is too old for this kernel: it does not know the layout of its vDSO",
        "run `waypoint setup` without WAYPOINT_CRIU; it installs CRIU 4.2 or newer",
    ),
    Cause(
        "traced",
        r"zombie (?P<pid>\d+) \(comm [^)]*\) found while seizing",
        "pid {pid} cannot be stopped: it is traced by another program, or it has ended and nobody has taken notice",
        "end the tracer (strace, gdb) in the session and try again",
    ),
    Cause(
        "vfork",
        r"Unseizable non-zombie (?P<pid>\d+) found, state D",
        "pid {pid} cannot be stopped: it sleeps in the kernel, waiting for a child that has not executed a program",
        "try again",
    ),
    Cause(
        "nested-namespace",
        r"Can't dump nested (?P<kind>\w+) namespace for (?P<pid>\d+)",
        "pid {pid} is in a {kind} namespace of its own (a browser's sandbox, bubblewrap, unshare)",
        "end it, or start it without its sandbox",
    ),
    Cause(
        "io-uring",
        r"send_fds failed \(-22\)|anon_inode:\[io_uring\]",
        "a process has a file open that cannot be handed over: io_uring",
        "start it without io_uring (node: UV_USE_IO_URING=0)",
    ),
    Cause(
        "dev-tty",
        r"ctty inheritance detected sid/pgrp (?P<session>\d+)",
        "a process keeps /dev/tty open, which CRIU cannot restore",
        "end it (an interactive dash does so, or a program that asks for a password); use bash or zsh",
    ),
    Cause(
        "ghost",
        r"Can't dump ghost file (?P<path>.*) of (?P<size>\d+) size, increase limit",
        "a process has a deleted file open, {path}, that is too large to be kept with the image ({size} bytes)",
        "close it, or end the process",
    ),
    Cause(
        "inotify",
        r"fsnotify: \s*Can't dump that handle",
        "a process watches files (inotify) that cannot be found again by their handles",
        "name the watched folders in a profile, or end the process",
    ),
    Cause(
        "unix-socket",
        r"Unix socket \d+ not found|Can't dump half of stream unix connection|[Ee]xternal socket is used",
        "a process has a Unix socket open whose other side is outside the session",
        "close it, or end the process",
    ),
    Cause(
        "file-from-outside",
        r"Can't lookup mount=\d+ for fd=(?P<fd>-?\d+) path=(?P<path>.*)",
        "a process has {path} open (fd {fd}) from outside the session",
        "start it again from within the session",
    ),
    Cause(
        "kind-of-file",
        r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \((?P<kind>.*)\)",
        "a process has a kind of file open (fd {fd}) that cannot be kept: {kind}",
        "close it, or end the process",
    ),
    Cause(
        "mount",
        r"mnt: \d+:(?P<path>\S*) doesn't have a proper root mount",
        "something is mounted at {path} that the session did not have at its start",
        "unmount it",
    ),
    Cause(
        "limits",
        r"Can't get rlimit \d+: Operation not permitted",
        "the machine gives no CAP_SYS_RESOURCE, so processes of other users can be dumped in a user namespace only",
        "start a new session, or give the container CAP_SYS_RESOURCE",
    ),
    Cause(
        "session-leader",
        r"A session leader of (?P<pid>\d+)\(\d+\) is outside of its pid namespace",
        "pid {pid} belongs to a terminal session that was opened outside",
        "start it again from within the session",
    ),
    Cause(
        "external-missing",
        r"mnt: No mapping for |mnt-v2: Failed to open_tree (?P<path>\S+): ",
        "what was mounted from outside when the image was made is not there {path}",
        "bring it back, or restore with `--only files`",
    ),
    Cause(
        "port-taken",
        r"Can't bind inet socket \(id \d+\): Address already in use",
        "a port that a process had open is in use",
        "end the process that has it, or restore with `--only files`",
    ),
    Cause(
        "pid-taken",
        r"Can't fork for (?P<pid>\d+): File exists",
        "pid {pid} is in use already",
        "end the process that has it",
    ),
    Cause(
        "program-changed",
        r"File (?P<path>.*) has bad (?:size|build-ID)",
        "/{path} is not the file any more that a process had open",
        "restore with `--only files`, or bring the former version back",
    ),
    Cause(
        "file-gone",
        r"Can't open file (?P<path>\S+) on restore: No such file or directory",
        "/{path}, which a process had open, is not there any more",
        "bring it back, or restore with `--only files`",
    ),
    Cause(
        "image-damaged",
        r"Unexpected EOF on |Read \d+ bytes while \d+ expected from ",
        "the image is incomplete",
        "choose another checkpoint",
    ),
    Cause(
        "no-process",
        r"Unable to detach from (?P<pid>\d+): No such process",
        "pid {pid} is not there (any more)",
        "start the session again",
    ),
)
