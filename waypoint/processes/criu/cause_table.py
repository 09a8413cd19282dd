"""The table of known reasons for which CRIU fails: a pattern of its error line, the meaning, the next step. Data only.

It has a row for each refusal of CRIU 4.2.1 (`pr_err` and `pr_perror` in its source) that programs of a session can
cause. docs/conditions.md is made from it. Each row has a recorded log in tests/processes/logs, or a line in
tests/processes/refusals.py. Rows are tried from the top, so the more specific ones come first.
"""

from dataclasses import dataclass

from waypoint.model.errors import MAKE_ROOM


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason. `pattern` is searched in CRIU's error lines; its named groups replace the braces in `meaning`. A
    group `pid` is the host's pid of the process; in a `meaning` that begins with "a process", the name of the process
    replaces these words.

    `is_accident`: another try may succeed. Otherwise the reason lies in the processes or the host, and another try
    fails.
    """

    name: str
    pattern: str
    meaning: str
    next_step: str
    is_accident: bool = False


DISK_FULL = "disk-full"
_NEW_CRIU = "run `waypoint setup` without WAYPOINT_CRIU; it installs CRIU 4.2 or newer"
_CLOSE_FILE = "close the file, or end the process"
_CLOSE_SOCKET = "close the socket, or end the process"
_END = "end the process"

CAUSES: tuple[Cause, ...] = (
    # The host.
    Cause(DISK_FULL, r"No space left on device", "the disk for the image is full", MAKE_ROOM, is_accident=True),
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
        _NEW_CRIU,
    ),
    Cause(
        "vdso",
        r"vdso: (?:Unexpected rt vDSO area bounds|Failed to fill self vdso symtable)",
        "this CRIU is too old for this kernel: it does not know the layout of its vDSO",
        _NEW_CRIU,
    ),
    Cause(
        "old-kernel",
        r"lacks get_rseq_conf feature|unsupported RSEQ ABI version|kernel commit ee71d16d22bb is missing"
        r"|Try a linux kernel newer|kernel is too old|Have no NSpid support",
        "the kernel is too old for something that a process uses",
        "use a newer kernel (Linux 5.13 or later)",
    ),
    Cause(
        "behind-a-filter",
        r"suspending seccomp failed",
        "the daemon runs under a filter of system calls (seccomp), as in a container, so CRIU cannot suspend others",
        "start the daemon without one (docker: --security-opt seccomp=unconfined)",
    ),
    Cause(
        "limits",
        r"Can't get rlimit \d+: Operation not permitted",
        "CRIU lacks CAP_SYS_RESOURCE, so it can dump processes of other users only in a user namespace",
        "start a new session, or give the container CAP_SYS_RESOURCE",
    ),
    Cause(
        "socket-diag",
        r"Sockets \(family (?P<family>\d+) proto (?P<protocol>\d+)\) are not collected",
        "a process has a socket of a kind that the kernel cannot list (family {family}, protocol {protocol})",
        "load the kernel's modules for it (modprobe unix_diag inet_diag tcp_diag udp_diag raw_diag packet_diag"
        " netlink_diag)",
    ),
    # Processes and threads.
    Cause(
        "traced",
        r"zombie (?P<pid>\d+) \(comm [^)]*\) found while seizing",
        "a process cannot be stopped: another program traces it, or it has ended and its parent has not waited for it",
        "end the tracer (strace, gdb) in the session and try again",
    ),
    Cause(
        "vfork",
        r"Unseizable non-zombie (?P<pid>\d+) found, state D",
        "a process cannot be stopped: it sleeps in the kernel until its child has executed a program (vfork)",
        "try again",
        is_accident=True,
    ),
    Cause(
        "pending-trap",
        r"Can't dump the (?P<pid>\d+) thread with a pending SIGTRAP",
        "a process has not yet received a SIGTRAP that was sent to it (a breakpoint, or kill)",
        "let the process handle the signal, or end it",
    ),
    Cause(
        "not-stopped",
        r"Unseizable non-zombie (?P<pid>\d+) found|Unable to freeze cgroup|Timeout reached. Try to interrupt"
        r"|Unable to interrupt the current operation|SEIZE \d+: (?:can't wait task|task not stopped)",
        "a process cannot be stopped: it sleeps in the kernel, for example until a disk or a network answers",
        "wait until that has ended, or end the process, and try again",
        is_accident=True,
    ),
    Cause(
        "nested-namespace",
        r"Can't dump nested (?P<kind>\w+) namespace for (?P<pid>\d+)|doesn't belong to the target user namespace",
        "a process is in a {kind} namespace of its own (a browser's sandbox, bubblewrap, unshare)",
        "end the process, or start it without its sandbox",
    ),
    Cause(
        "session-leader",
        r"A session leader of (?:zombie process )?(?P<pid>\d+)\(\d+\) is outside of its pid namespace",
        "a process belongs to a terminal session whose leader is outside",
        "start the process again from within the session",
    ),
    Cause(
        "first-thread",
        r"Zombies with threads are not supported",
        "a process has ended its first thread while its other threads run, which CRIU cannot dump",
        "end the process, or change the program so that its first thread waits for the others",
    ),
    Cause(
        "ending-thread",
        r"Zombie thread not supported|Zombie with children",
        "a process was ending one of its threads, or itself, at that moment",
        "try again",
        is_accident=True,
    ),
    Cause(
        "stopped-thread",
        r"Individually stopped threads not supported",
        "a process has stopped threads and running ones, which CRIU cannot dump",
        "let the process continue (kill -CONT), or end it",
    ),
    Cause(
        "32-bit",
        r"Can't dump task (?P<pid>\d+) running in 32-bit mode",
        "a process runs a 32-bit program, which this CRIU cannot dump",
        "use the program's 64-bit version, or end the process",
    ),
    Cause(
        "segments",
        r"Can't dump task (?P<pid>\d+) with LDT descriptors|The local descriptor table is in use",
        "a process uses memory segments of its own (modify_ldt, as Wine does for 16-bit programs)",
        _END,
    ),
    Cause(
        "shared-parts",
        r"Can't make (?P<part>VM|FS|FILES|IO) id for (?P<pid>\d+)",
        "a process shares its memory, its folder or its open files with another process (clone with CLONE_VM, CLONE_FS"
        " or CLONE_FILES; CRIU: {part})",
        "end one of the two processes",
    ),
    Cause(
        "groups",
        r"Too many groups in task \d+|The bfd buffer is too small",
        "a process belongs to more groups than CRIU can dump",
        "start the program as a user with fewer groups",
    ),
    Cause(
        "uprobes",
        r"PID (?P<pid>\d+) has uprobes vma",
        "a process is probed by a tracing program of the machine (uprobes: perf, bpftrace)",
        "end the tracing, and start the process again",
    ),
    # Memory.
    Cause(
        "io-uring",
        r"send_fds failed \(-22\)|anon_inode:\[io_uring\]",
        "a process has an io_uring open, which CRIU cannot dump",
        "start the program without io_uring (node: UV_USE_IO_URING=0)",
    ),
    Cause(
        "kind-of-memory",
        r"Unknown shit \d+ \((?P<kind>.*)\)|Can't handle non-regular mapping on (?P<pid>\d+)'s map"
        r"|Unsupported mapping found",
        "a process has memory of a kind that CRIU cannot dump, such as that of a device: {kind}",
        "let the process unmap that memory, or end it",
    ),
    Cause(
        "sealed-memory",
        r"Sealed mapping",
        "a process has sealed memory (mseal), and it would not be sealed in a copy",
        "end the process, or capture without memory: --tier respawn",
    ),
    Cause(
        "time-stamp-counter",
        r"The time stamp counter is forbidden",
        "a process may not read the processor's time stamp counter (PR_SET_TSC), and could in a copy",
        "end the process, or capture without memory: --tier respawn",
    ),
    Cause(
        "own-system-calls",
        r"(?P<pid>\d+) dispatches system calls",
        "a process handles its system calls itself (PR_SET_SYSCALL_USER_DISPATCH, as Wine does)",
        "end the process, or capture without memory: --tier respawn",
    ),
    Cause(
        "mdwe",
        r"MDWE is set",
        "a process has denied itself new executable memory (PR_SET_MDWE), and it would not be denied in a copy",
        "end the process, or capture without memory: --tier respawn",
    ),
    Cause(
        "mapped-file",
        r"Strange file mapped at|Failed to resolve mapping \w+ filename|Failed fstat(?:at)? on map|Bogus mapping"
        r"|Can't open (?:mapped \[|\d+'s mapfile|map_files)",
        "a process has a file in its memory (mmap) that CRIU cannot open",
        "let the process unmap the file, or end it",
    ),
    Cause(
        "shared-memory",
        r"Sysv shmem \w+ with|with SysVIPC shmem map|points to anon vma|already collected as SYSVIPC"
        r"|Can't open \d+/map_files/\S+ on procfs",
        "a process has only parts of a segment of System V shared memory in its memory",
        "let the process detach the segment (shmdt), or end it",
    ),
    Cause(
        "ipc",
        r"Failed to (?:copy|get stats for|collect|attach|detach|write|read max|send|create|prepare|set desired)"
        r" (?:IPC|shm|sem|msg|\d+ (?:message queues|\(only))|(?:semctl|msgctl|shmctl\(SHM_INFO\)) failed",
        "the session's System V message queues, semaphores or shared memory cannot be read or made again",
        "remove those that are not needed (ipcs, ipcrm)",
    ),
    Cause(
        "aio",
        r"Not valid ring #\d+|Ring size is not aligned",
        "a process has a damaged queue for asynchronous input and output (io_setup)",
        _END,
    ),
    Cause(
        "reserved-memory",
        r"Unable to reserve memory \((?P<size>\w+)(?: bytes)?\)",
        "a process had so much memory reserved that it cannot be reserved again ({size} bytes)",
        "end such a process before the checkpoint (programs with -fsanitize reserve much)",
    ),
    # Files, pipes and terminals.
    Cause(
        "dev-tty",
        r"ctty inheritance detected sid/pgrp (?P<session>\d+)",
        "a process keeps /dev/tty open, which CRIU cannot restore",
        "end the process (usually an interactive dash, or a program that asks for a password); use bash or zsh",
    ),
    Cause(
        "terminal-number",
        r"Index (?P<number>\d+) on (?:ptmx|pts) is too big",
        "a process has terminal {number} open, and CRIU can dump only terminals up to number 1000",
        "close some terminals",
    ),
    Cause(
        "terminal-side",
        r"Found dangling tty with sid|Found slave peer index \d+ without|No task found with sid \d+",
        "a process has a terminal open whose program on the other side, or whose session leader, is not in the session",
        "close the terminal, or end the process",
    ),
    Cause(
        "terminal-ended",
        r"tty: Can't (?:get|set) tty \w*\s?params|tty: Can't fetch params",
        "a process has a terminal open that has hung up, because its other side was closed",
        "close the terminal, or end the process",
    ),
    Cause(
        "terminal-data",
        r"The tty \(.*\) queued data overflow",
        "a process has a terminal open with more unread data than CRIU can keep",
        "let the program read the data, or end it",
    ),
    Cause(
        "terminal-foreground",
        r"tty: Failed to set group",
        "the foreground process group of a terminal had no process",
        "choose another checkpoint",
    ),
    Cause(
        "ghost",
        r"Can't dump ghost file (?P<path>.*) of (?P<size>\d+) size, increase limit",
        "a process has a deleted file open, {path}, that is too large to be kept with the image ({size} bytes)",
        "free space on the disk, close the file, or end the process",
    ),
    Cause(
        "removed-name",
        r"Can't (?:create link remap for|link remap to) (?P<path>[^ :]*)",
        "a process has a file open whose name was removed, and CRIU cannot give it another name: {path}",
        _CLOSE_FILE,
    ),
    Cause(
        "ended-process",
        r"Conflict with a dead task with the same PID",
        "a process has a file in /proc open of a process that has ended, whose pid is in use again",
        _CLOSE_FILE,
    ),
    Cause(
        "thread-file",
        r"Can't open file proc/(?P<owner>\d+)/task/(?P<thread>\d+)\S* on restore",
        "a process has a file of thread {thread} open in /proc/{owner}/task, which CRIU cannot restore",
        "let the program close such files before the checkpoint",
    ),
    Cause(
        "long-path",
        r"Buffer for read ?link.* is too small|Can't read ?link.*: File name too long"
        r"|The (?:path .*|file name) is too long"
        r"|Not enough space to (?:replace|concatenate)",
        "a process uses a file, a folder or a socket whose path is too long for CRIU",
        "rename a folder to make the path shorter",
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
        r"fsnotify: \s*(?:Can't dump that handle|Can't find suitable path|Unable to lookup a mount)",
        "a process watches files (inotify, fanotify) that CRIU cannot find by their handles",
        "end the process, or make it stop watching files",
    ),
    Cause(
        "secret-memory",
        r"Can't lookup mount=\d+ for fd=(?P<fd>-?\d+) path=/secretmem",
        "a process has secret memory (memfd_secret) open (fd {fd}), which CRIU cannot read",
        _CLOSE_FILE,
    ),
    Cause(
        "file-from-outside",
        r"Can't lookup mount=\d+ for fd=(?P<fd>-?\d+) path=(?P<path>.*)",
        "a process has {path} open (fd {fd}), which is outside the session or a POSIX message queue",
        "start the process again from within the session; close a message queue (mq_close)",
    ),
    Cause(
        "covered-file",
        r"Open files on overmounted mounts are not supported yet; mount=\d+ fd=(?P<fd>-?\d+) path=(?P<path>.*)"
        r"|Unaccessible path opened|The path \[.*\] is not supported",
        "a process has a file open that has no path any more, perhaps because something was mounted over it: {path}",
        "undo the mount (umount), close the file, or end the process",
    ),
    Cause(
        "kind-of-file",
        r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \((?P<kind>.*)\)",
        "a process has a file open (fd {fd}) of a kind that CRIU cannot dump: {kind}",
        _CLOSE_FILE,
    ),
    Cause(
        "bpf-map",
        r"CRIU does not currently support dumping BPF map type|BPF map info|batch lookup on BPF map",
        "a process has a BPF map open that CRIU cannot dump",
        _CLOSE_FILE,
    ),
    Cause(
        "file-lock",
        r"Unresolved lock found pid|Unknown file lock|Unknown lock option|Bogus lock test result"
        r"|Can't downgrade lock back|Some file locks are hold",
        "a process holds or awaits a file lock that CRIU cannot dump",
        "let the program release the lock, or end it",
    ),
    Cause(
        "lease",
        r"Lease doesn't conflicts but breaks|(?:Incorrect|Invalid|Can't get)(?: target)?(?: file)? lease type"
        r"|Can't (?:set|break) lease|Conflicting lease wasn't found",
        "a process has a lease on a file (F_SETLEASE) that another process wants to open",
        "let the program give up the lease, or end it",
    ),
    Cause(
        "packet-pipe",
        r"packetized mode for pipes is not supported",
        "a process has a pipe in packet mode open (pipe2 with O_DIRECT), which CRIU cannot dump",
        "close the pipe, or end the process",
    ),
    Cause(
        "pipe-size",
        r"Unable to set a pipe size: Operation not permitted|Can't restore pipe size: Operation not permitted",
        "a process has a pipe that is larger than a user of this machine may make",
        "raise the limits: sysctl fs.pipe-max-size, fs.pipe-user-pages-soft and fs.pipe-user-pages-hard",
    ),
    Cause(
        "epoll",
        r"Escaped/closed fd descriptor (?P<fd>\d+) on pid (?P<pid>\d+)|kcmp-epoll failed",
        "a process awaits a file (epoll, fd {fd}) that it has closed itself and that is still open elsewhere",
        _END,
    ),
    Cause(
        "pidfd",
        r"pidfd pid \d+ is not a part of process tree|PIDFD_THREAD flag is currently not supported",
        "a process has a descriptor of a thread, or of a process outside the session (pidfd)",
        "close the descriptor, or end the process",
    ),
    Cause(
        "tun",
        r"^tun: (?!Can't check|No proper|Unable to create)",
        "a process has a TUN or TAP device open (a VPN) that CRIU cannot dump or restore",
        _END,
    ),
    # Sockets.
    Cause(
        "mptcp",
        r"inet: Unsupported proto 262 for socket",
        "a process has a Multipath TCP socket open (servers of Go 1.24 and later), which CRIU cannot dump",
        "use a session with a network of its own, or start the program without MPTCP (Go: GODEBUG=multipathtcp=0)",
    ),
    Cause(
        "socket-protocol",
        r"inet: Unsupported proto (?P<protocol>\d+) for socket|Can't dump \d+ inet socket",
        "a process has a socket open of an internet protocol that CRIU cannot dump (such as SCTP): {protocol}",
        _CLOSE_SOCKET,
    ),
    Cause(
        "socket-family",
        r"(?:Unknown socket collected \(family |Unsupported socket family: )(?P<family>\d+)",
        "a process has a socket open of a kind that CRIU cannot dump (such as vsock, AF_XDP, AF_ALG): family {family}",
        _CLOSE_SOCKET,
    ),
    Cause(
        "corked-socket",
        r"Can't dump corked dgram socket",
        "a process has a UDP socket open with data that it holds back (UDP_CORK, MSG_MORE)",
        "let the program send the data, or end it",
    ),
    Cause(
        "socket-state",
        r"Unknown inet socket \w+ state \d+|Socket state \d+ obtained but expected|Unknown state \d+"
        r"|Unsupported type \(\d+\) on socket",
        "a process has a socket in a state that CRIU does not know",
        "try again; if it happens again, close the socket, or end the process",
    ),
    Cause(
        "tcp-repair",
        r"Can't turn TCP repair mode ON|Failed to (?:un)?lock TCP connection|libsoccr_save\(\) failed",
        "a process has a TCP connection that the kernel does not let CRIU read or restore",
        "use a session with a network of its own, or end the process",
    ),
    Cause(
        "socket-path",
        r"Can't get \d+:\d+ opt: Bad file descriptor",
        "a process has the file of a Unix socket open without being connected to it (O_PATH)",
        _CLOSE_FILE,
    ),
    Cause(
        "socket-option",
        r"Can't get \d+:\d+ opt|Len mismatch on \d+:\d+|Can't get bound dev|Can't get socket filter",
        "a process has a socket with an option or a filter (BPF) that CRIU cannot read",
        _CLOSE_SOCKET,
    ),
    Cause(
        "unread-netlink",
        r"netlink: The socket has data to read",
        "a process has not read all messages of a netlink socket (news about the network or devices)",
        "let the program read them, and try again; or end it",
    ),
    Cause(
        "netlink-groups",
        r"netlink socket \w+ (?:has more than 32 groups|is bound to groups but not to portid)",
        "a process listens to groups of a netlink socket in a way that CRIU cannot dump",
        _CLOSE_SOCKET,
    ),
    Cause(
        "packet-socket",
        r"packet: (?:Multiple MC|Unknown mc|Can't find packet socket|Mmap-ed socket|No packet sock)",
        "a process has a packet socket (tcpdump, a DHCP client) that CRIU cannot dump",
        _CLOSE_SOCKET,
    ),
    Cause(
        "unread-control",
        r"Control messages in queue, not supported|Unexpected 2nd SCM_RIGHTS",
        "a process has not read messages of a Unix socket that carry the sender (SO_PASSCRED) or the time",
        "let the program read them, and try again; or end it",
    ),
    Cause(
        "unread-messages",
        r"sys_recvmsg failed: truncated|skqueue: recvmsg fail",
        "a process has unread messages in a socket that CRIU cannot read",
        "let the program read them, and try again; or end it",
    ),
    Cause(
        "unaccepted",
        r"Dangling connection \d+|In-flight connection on non-listening|Non-empty write queue on an in-flight socket"
        r"|Found a closed in-flight socket|In-flight connection \(l\)",
        "a process has a connection that the server has not accepted, but that has sent data or was closed already",
        "let the server accept the connection, and try again; or end the server or the client",
    ),
    Cause(
        "unix-socket",
        r"Unix socket \d+ (?:not found|without peer|with unreachable peer)|Can't dump half of stream unix connection"
        r"|[Ee]xternal socket is used|name-less external socket",
        "a process has a Unix socket open whose other side is outside the session",
        _CLOSE_SOCKET,
    ),
    Cause(
        "moved-socket",
        r"unix: Unable too cut (?P<name>.*) from (?P<path>.*)",
        "a process has a Unix socket that it bound to the relative path {name} and then renamed to {path}",
        _CLOSE_SOCKET,
    ),
    Cause(
        "socket-name",
        r"unix: (?:Bound socket w/o inode|Can't (?:resolve|readlink|stat socket)|Unable to (?:fstat|get a|resolve) )",
        "a process has a Unix socket whose file CRIU cannot find",
        _CLOSE_SOCKET,
    ),
    Cause(
        "namespace-file",
        r"No NS ID with kid \d+|Can't find suitable NS ID",
        "a process has the file of a namespace open, and no process of the session is in that namespace",
        _CLOSE_FILE,
    ),
    Cause(
        "other-network",
        r"dump a socket from an external network namespace|Unable to (?:find|switch) a network namespace",
        "a process has a socket open that belongs to another network than the session's",
        _CLOSE_SOCKET,
    ),
    # Mounts.
    Cause(
        "mount",
        r"mnt: \d+:(?P<path>\S*) doesn't have a proper root mount",
        "something is mounted at {path} that the session did not have at its start",
        "undo that mount (umount)",
    ),
    Cause(
        "autofs",
        r"[Aa]utofs.*(?:not empty|alive, but unreachable|pipe)|Failed to find read pipe fd|failed to access autofs",
        "an automounter (autofs) of the session cannot be dumped",
        "end the automounter, and undo its mounts (umount)",
    ),
    Cause(
        "kind-of-mount",
        r"(?:FS mnt |failed to dump fs |^)(?P<path>\S+) (?:dev \S+ root \S+ unsupported|is a fuse mount|\(.*\): always)"
        r"|^\w+ isn't empty|Second binfmt_misc|unreachable sharing|has two children with same mountpoint",
        "a file system is mounted that CRIU cannot dump: {path}",
        "undo that mount (umount)",
    ),
    # Restores.
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
        "address-missing",
        r"Can't bind inet socket \(id \d+\): (?P<said>Cannot assign requested address|No such device)"
        r"|couldn't find if(?:name|index) for|Can't get interface name|Can't bind packet socket",
        "an address or interface of the network that a process used is missing",
        "add it to the network again, or start the session with the network that it had (--net)",
    ),
    Cause(
        "name-taken",
        r"unix: Can't bind id \w+ ino \d+ addr (?P<path>.*): (?P<said>[^:]*)",
        "a Unix socket of a process cannot be made again at {path}: {said}",
        "remove the file at that path, or restore the folder",
    ),
    Cause(
        "pid-taken",
        r"Can't fork for (?P<pid>\d+): File exists",
        "pid {pid} is in use already",
        "end the process that has this pid",
    ),
    Cause(
        "program-changed",
        r"File (?P<path>.*) has bad (?:size|build-ID|mode)",
        "/{path}, which a process had open, has changed",
        "restore the former version of the file",
    ),
    Cause(
        "program-in-memory",
        r"No entry for reg-file-ID",
        "a process runs a program from memory (memfd_create), which CRIU cannot restore",
        "start the program from a file",
    ),
    Cause(
        "file-gone",
        r"Can't open file (?P<path>\S+) on restore: No such file or directory",
        "/{path}, which a process had open, is missing",
        "restore the file",
    ),
    Cause(
        "file-closed",
        r"Can't open file (?P<path>\S+) on restore: (?P<said>[^:]*)",
        "/{path}, which a process had open, cannot be opened again: {said}",
        "restore the former file or device",
    ),
    Cause(
        "other-processor",
        r"host cpu doesn't support|(?:CPU|FPU) .*(?:do not match|mismatch|required by image|unsupported bits)",
        "the image was made on another kind of processor, with instructions that this one lacks",
        "restore it on such a machine",
    ),
    Cause(
        "other-kernel",
        r"vDSO isn't provided by kernel|Failed to proxify dumpee contents|only support vmas up to",
        "the image was made on another kernel, with a memory layout that this kernel does not support",
        "restore it on such a machine",
    ),
    Cause(
        "image-damaged",
        r"Unexpected EOF on |Read \d+ bytes while \d+ expected from |[Cc]orrupted image|[Ii]mage corrupt",
        "the image is incomplete",
        "choose another checkpoint",
    ),
    # Errors that follow from other errors: last, so that the other rows are tried first.
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
