"""The table of known reasons for which CRIU fails: a pattern of its error line, the meaning, the next step. Data only.

Each row has a recorded log in tests/processes/logs. Rows are tried from the top, so the more specific ones come first.
"""

from dataclasses import dataclass

from waypoint.model.errors import MAKE_ROOM


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason. `pattern` is searched in CRIU's error lines; its named groups replace the braces in `meaning`.

    `is_accident`: another try may succeed. Otherwise the reason lies in the processes or the host, and another try
    fails.
    """

    name: str
    pattern: str
    meaning: str
    next_step: str
    is_accident: bool = False


DISK_FULL = "disk-full"

CAUSES: tuple[Cause, ...] = (
    Cause(
        DISK_FULL,
        r"No space left on device",
        "the disk for the image is full",
        MAKE_ROOM,
        is_accident=True,
    ),
    Cause(  # only for image files: on other files these errors have other causes, such as a terminal that has hung up
        "disk-failed",
        r"(?:Unable to open \S+\.img|Unable to spice data|flushing image|write img file|Can't write \d+ bytes)"
        r": (?P<said>Input/output error|Read-only file system)",
        "the disk for the image cannot be written: {said}",
        "see the kernel's log (dmesg), and try again when the disk can be written",
        is_accident=True,
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
        "behind-a-filter",
        r"suspending seccomp failed",
        "the daemon runs under a filter of system calls (seccomp), as in a container, so CRIU cannot suspend others",
        "start the daemon without one (docker: --security-opt seccomp=unconfined)",
    ),
    Cause(
        "traced",
        r"zombie (?P<pid>\d+) \(comm [^)]*\) found while seizing",
        "pid {pid} cannot be stopped: another program traces it, or it has ended and its parent has not waited for it",
        "end the tracer (strace, gdb) in the session and try again",
    ),
    Cause(
        "vfork",
        r"Unseizable non-zombie (?P<pid>\d+) found, state D",
        "pid {pid} cannot be stopped: it sleeps in the kernel until its child has executed a program (vfork)",
        "try again",
        is_accident=True,
    ),
    Cause(
        "nested-namespace",
        r"Can't dump nested (?P<kind>\w+) namespace for (?P<pid>\d+)",
        "pid {pid} is in a {kind} namespace of its own (a browser's sandbox, bubblewrap, unshare)",
        "end the process, or start it without its sandbox",
    ),
    Cause(
        "io-uring",
        r"send_fds failed \(-22\)|anon_inode:\[io_uring\]",
        "a process has an io_uring open, which CRIU cannot dump",
        "start the program without io_uring (node: UV_USE_IO_URING=0)",
    ),
    Cause(
        "dev-tty",
        r"ctty inheritance detected sid/pgrp (?P<session>\d+)",
        "a process keeps /dev/tty open, which CRIU cannot restore",
        "end the process (usually an interactive dash, or a program that asks for a password); use bash or zsh",
    ),
    Cause(
        "ghost",
        r"Can't dump ghost file (?P<path>.*) of (?P<size>\d+) size, increase limit",
        "a process has a deleted file open, {path}, that is too large to be kept with the image ({size} bytes)",
        "free space on the disk, close the file, or end the process",
    ),
    Cause(
        "inotify-instances",
        r"Can't create inotify(?: for 0x\w+)?: Too many open files",
        "a user of the machine has as many lists of watched files (inotify) as fs.inotify.max_user_instances allows",
        "raise that limit: sysctl fs.inotify.max_user_instances=1024",
        is_accident=True,
    ),
    Cause(
        "inotify",
        r"fsnotify: \s*Can't dump that handle",
        "a process watches files (inotify) that CRIU cannot find by their handles",
        "end the process, or make it stop watching files",
    ),
    Cause(
        "mptcp",
        r"inet: Unsupported proto 262 for socket",
        "a process has a Multipath TCP socket open (servers of Go 1.24 and later), which CRIU cannot dump",
        "use a session with a network of its own, or start the program without MPTCP (Go: GODEBUG=multipathtcp=0)",
    ),
    Cause(
        "unix-socket",
        r"Unix socket \d+ not found|Can't dump half of stream unix connection|[Ee]xternal socket is used",
        "a process has a Unix socket open whose other side is outside the session",
        "close the socket, or end the process",
    ),
    Cause(
        "moved-socket",
        r"unix: Unable too cut (?P<name>.*) from (?P<path>.*)",
        "a process has a Unix socket that it bound to the relative path {name} and then renamed to {path}",
        "close the socket, or end the process",
    ),
    Cause(
        "file-from-outside",
        r"Can't lookup mount=\d+ for fd=(?P<fd>-?\d+) path=(?P<path>.*)",
        "a process has {path} open (fd {fd}) from outside the session",
        "start the process again from within the session",
    ),
    Cause(
        "kind-of-file",
        r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \((?P<kind>.*)\)",
        "a process has a file open (fd {fd}) of a kind that CRIU cannot dump: {kind}",
        "close the file, or end the process",
    ),
    Cause(
        "mount",
        r"mnt: \d+:(?P<path>\S*) doesn't have a proper root mount",
        "something is mounted at {path} that the session did not have at its start",
        "undo that mount (umount)",
    ),
    Cause(
        "limits",
        r"Can't get rlimit \d+: Operation not permitted",
        "CAP_SYS_RESOURCE is missing, without which CRIU can dump processes of other users in a user namespace only",
        "start a new session, or give the container CAP_SYS_RESOURCE",
    ),
    Cause(
        "session-leader",
        r"A session leader of (?P<pid>\d+)\(\d+\) is outside of its pid namespace",
        "pid {pid} belongs to a terminal session whose leader is outside",
        "start the process again from within the session",
    ),
    Cause(
        "external-missing",
        r"mnt: No mapping for |mnt-v2: Failed to open_tree (?P<path>\S+): ",
        "a folder of the host that was mounted when the image was made is missing {path}",
        "restore the folder",
    ),
    Cause(
        "port-taken",
        r"Can't bind inet socket \(id \d+\): Address already in use",
        "a port that a process had open is in use",
        "end the process that uses the port",
    ),
    Cause(
        "pid-taken",
        r"Can't fork for (?P<pid>\d+): File exists",
        "pid {pid} is in use already",
        "end the process that has this pid",
    ),
    Cause(
        "program-changed",
        r"File (?P<path>.*) has bad (?:size|build-ID)",
        "/{path}, which a process had open, has changed",
        "restore the former version of the file",
    ),
    Cause(
        "file-gone",
        r"Can't open file (?P<path>\S+) on restore: No such file or directory",
        "/{path}, which a process had open, is missing",
        "restore the file",
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
        "pid {pid} has ended",
        "start the session again",
        is_accident=True,
    ),
    Cause(
        "proc-replaced",
        r"whose /proc doesn't belong to it|Can't get /proc fd",
        "something else is mounted at /proc than at the start of the session",
        "continue from its files: waypoint stop, then waypoint shell",
    ),
    Cause(
        "used-up",
        r"Too many references: cannot splice|Can't retrieve FDs? from socket|send_fds failed \(-(?:12|23|24|109)\)"
        r"|Too many open files|(?:[Ff]ork|clone)\b.*: Resource temporarily unavailable|Disk quota exceeded",
        "a limit that sessions share is used up: descriptors that programs send each other, open files, processes",
        "stop the session that uses so many of them, or wait until it has ended, and try again",
        is_accident=True,
    ),
    Cause(
        "out-of-memory",
        r": Cannot allocate memory",
        "the machine has not enough memory",
        "end other programs, and try again",
        is_accident=True,
    ),
    Cause(
        "task-killed",
        r"killed by (?:signal )?\d+|(?:exited with|stopped by) \d+ unexpectedly|dumping finished with error \d{1,2}$",
        "a process of the session, or a helper of CRIU's, was killed while CRIU worked",
        "try again",
        is_accident=True,
    ),
)
