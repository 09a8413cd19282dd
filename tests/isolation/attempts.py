"""Attempts to reach the machine or another session from inside a session.

It is a program that runs in sessions, so it uses the standard library only:

    python3 -I attempts.py try PLAN       try each expression of the plan, print a JSON object of the outcomes
    python3 -I attempts.py control PLAN   do the same outside of all sessions, each attempt in its own mount namespace
    python3 -I attempts.py hold TEXT      hold a port, files etc. that other sessions must not reach, until killed

PLAN is a JSON file: {"facts": ..., "attempts": {name: expression}}. An expression calls functions of this file; its
variable `facts` describes what the test has made outside. Even an attempt that succeeds does no harm: it writes the
value that is already set, or its system call has arguments with which the kernel only checks the caller's right.

An outcome is `reached`, the name of an errno, or a word that the expression returns for what it found instead.
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace

REACHED = "reached"
LONGEST_S = 60  # an attempt that takes longer is killed

_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {
    "x86_64": {"delete_module": 176, "finit_module": 313, "init_module": 175, "bpf": 321, "kexec_load": 246}
    | {"ioprio_set": 251, "reboot": 169, "settimeofday": 164},
    "aarch64": {"delete_module": 106, "finit_module": 273, "init_module": 105, "bpf": 280, "kexec_load": 104}
    | {"ioprio_set": 30, "reboot": 142, "settimeofday": 170},
}[os.uname().machine] | {"open_tree": 428, "fsopen": 430}
"""System calls for which libc has no function, or a function that checks the arguments."""

_HOLD_PORT = 4711
_HOLD_KEY = 0x77617970
_HOLD_NAME = "waypoint-test-held"


def call(name: str, *args: "int | bytes | ctypes.Array[ctypes.c_char] | None", passed: tuple[int, ...] = ()) -> int:
    """Make the system call `name`. `passed`: errors that count as success, as only a permitted caller gets them."""
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    if name in _NUMBERS:
        result: int = _LIBC.syscall(ctypes.c_long(_NUMBERS[name]), *wide)
    else:
        result = getattr(_LIBC, name)(*wide)
    number = ctypes.get_errno()
    if result < 0 and number not in passed:
        raise OSError(number, os.strerror(number))
    return result


# --- files of the machine


def opens(path: str, flags: int = os.O_RDONLY) -> None:
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))


def opens_to_write(path: str) -> None:
    opens(path, os.O_WRONLY)


def leases() -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)


def lists(path: str) -> str | None:
    return None if os.listdir(path) else "empty"


def has_line(path: str, text: str) -> str | None:
    with open(path, errors="replace") as file:
        return None if text in file.read() else "not there"


def makes_a_node_of(device: int) -> None:
    """Make a device node of the disk and open it."""
    with _scratch() as folder:
        os.mknod(f"{folder}/node", 0o600 | stat.S_IFBLK, device)
        opens(f"{folder}/node")


def makes_immutable() -> None:
    with _scratch() as folder, open(f"{folder}/file", "w") as file:
        flags = array.array("l", [0])
        fcntl.ioctl(file, 0x80086601, flags)  # FS_IOC_GETFLAGS
        was, flags[0] = flags[0], flags[0] | 0x10
        fcntl.ioctl(file, 0x40086602, flags)  # FS_IOC_SETFLAGS, FS_IMMUTABLE_FL
        flags[0] = was
        fcntl.ioctl(file, 0x40086602, flags)


def sets_a_trusted_attribute() -> None:
    with _scratch() as folder:
        os.setxattr(folder, "trusted.overlay.opaque", b"y")


def opens_by_handle(folder: str, kind: int, handle: str) -> None:
    """Open a file by its handle, as the exploit `shocker` did: the inode number in the handle is enough."""
    content = bytes.fromhex(handle)
    buffer = ctypes.create_string_buffer(struct.pack("Ii", len(content), kind) + content)
    fd = os.open(folder, os.O_RDONLY)
    os.close(call("open_by_handle_at", fd, buffer, os.O_RDONLY))


def leaves_a_chroot(root: list[int]) -> str | None:
    """Leave a chroot by its oldest hole: the current directory may lie outside of the root."""
    with _scratch() as folder:
        os.chroot(folder)
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
        return is_root_of_the_machine(root)


def is_root_of_the_machine(root: list[int], path: str = "/") -> str | None:
    found = os.stat(path)
    return None if [found.st_dev, found.st_ino] == root else "its own"


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


# --- the kernel


def mounts(fstype: str, where: str = "/mnt") -> None:
    # EBUSY: cgroup version 1 has the controllers
    call("mount", b"none", where.encode(), fstype.encode(), 0, None, passed=(errno.EBUSY,))


def mounts_cgroups() -> None:
    """Mount cgroup2 in new namespaces, as the owner of a cgroup namespace may. It shows the machine's cgroups."""
    call("unshare", 0x12020000)  # CLONE_NEWUSER, NEWCGROUP, NEWNS
    mounts("cgroup2")


def unmounts(where: str) -> None:
    call("umount2", where.encode(), 2)  # MNT_DETACH


def remounts(where: str) -> None:
    call("mount", None, where.encode(), None, 32 | 4096, None)  # MS_REMOUNT, MS_BIND


def loads_a_module() -> None:
    call("init_module", b"none", 4, b"", passed=(errno.ENOEXEC, errno.EBADMSG, errno.ENOKEY))


def loads_a_module_file() -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    call("finit_module", null, b"", 0, passed=(errno.EINVAL, errno.ENOEXEC))


def lists_bpf_programs() -> None:
    call("bpf", 11, ctypes.create_string_buffer(128), 128, passed=(errno.ENOENT,))  # BPF_PROG_GET_NEXT_ID


def loads_a_kernel() -> None:
    call("kexec_load", 0, 0, None, 0xFFFF, passed=(errno.EINVAL,))  # invalid flags


def sets_ctrl_alt_del() -> None:
    """Call reboot(2) to set the effect of ctrl-alt-del to its present value."""
    with open("/proc/sys/kernel/ctrl-alt-del") as file:
        command = 0x89ABCDEF if int(file.read()) else 0
    call("reboot", 0xFEE1DEAD, 672274793, command, None)


def steers_the_clock() -> None:
    state = ctypes.create_string_buffer(256)
    call("adjtimex", state)
    struct.pack_into("I", state, 0, 0x4000)  # ADJ_TICK, with the present value
    call("adjtimex", state)


def gets_io_ports() -> str | None:
    if os.uname().machine != "x86_64":
        raise OSError(errno.ENOSYS, "only x86 has I/O ports")
    call("iopl", 3)
    return None


def decides_about_opens() -> None:
    call("fanotify_init", 4, 0)  # FAN_CLASS_CONTENT


def names_the_machine() -> None:
    name = os.uname().nodename.encode()
    call("sethostname", name, len(name))


def reads_before_all() -> None:
    call("ioprio_set", 1, 0, 1 << 13)  # IOPRIO_CLASS_RT


def is_never_killed() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")


def raises_a_limit() -> None:
    for hard in (0, 1024):
        call("setrlimit", 4, struct.pack("QQ", 0, hard))  # RLIMIT_CORE


def credits_randomness() -> None:
    with open("/dev/urandom", "wb") as device:
        fcntl.ioctl(device, 0x40045201, struct.pack("i", 0))  # RNDADDTOENTCNT


def takes_the_console() -> None:
    """Redirect the console. EBUSY counts as success: the caller has the right, but it is already redirected."""
    _master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, 0x541D)  # TIOCCONS
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


def holds(*capabilities: int) -> str | None:
    """Look for any of the capabilities in the bounding set."""
    held = [one for one in capabilities if call("prctl", 23, one, 0, 0, 0, passed=(errno.EINVAL,)) == 1]
    return None if held else "none"


# --- processes


def traces(pid: int) -> None:
    call("ptrace", 0x4206, pid, None, None)  # PTRACE_SEIZE


def reads_memory(pid: int) -> None:
    buffer = ctypes.create_string_buffer(8)
    here, there = (struct.pack("PN", address, 8) for address in (ctypes.addressof(buffer), 1))
    call("process_vm_readv", pid, here, 1, there, 1, 0, passed=(errno.EFAULT,))


def sees_a_process_with(secret: str) -> str | None:
    """Look for `secret` in the environment and the arguments of all processes."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", errors="replace") as file:
                if secret in file.read():
                    return None
    return "not there"


def sees_terminals_of(device: int) -> str | None:
    """Look for terminals of the devpts with this device number."""
    found = [os.stat(f"/dev/pts/{name}").st_dev for name in os.listdir("/dev/pts")]
    return None if device in found else "its own"


# --- sockets, networks, shared memory


def connects(port: int, address: str = "127.0.0.1") -> None:
    socket.create_connection((address, port), 5).close()  # a refusal comes at once


def connects_to(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def writes_to_the_reader_of(fifo: str) -> None:
    opens(fifo, os.O_WRONLY)


def sees_interfaces() -> str | None:
    """Look for interfaces that are not a session's: `lo`, and its end of a veth pair with a fixed hardware address."""
    with socket.socket() as any_socket:
        others = [name.encode() for _, name in socket.if_nameindex() if name != "lo"]
        found = [fcntl.ioctl(any_socket, 0x8927, name.ljust(40, b"\0"))[18:24] for name in others]  # SIOCGIFHWADDR
    return None if [one for one in found if one != b"\x02\0\x0a\x4d\0\x01"] else "its own"


def sets_an_interface() -> None:
    """Set the flags of the loopback interface to their present values."""
    with socket.socket() as any_socket:
        request = bytearray(b"lo".ljust(40, b"\0"))
        fcntl.ioctl(any_socket, 0x8913, request)  # SIOCGIFFLAGS
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def asks_the_audit() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9) as audit:
        audit.settimeout(60)  # the kernel answers at once
        audit.send(struct.pack("IHHII", 16, 1000, 5, 1, 0))  # AUDIT_GET, NLM_F_REQUEST | NLM_F_ACK
        (error,) = struct.unpack_from("i", audit.recv(1024), 16)
        if error < 0:
            raise OSError(-error, os.strerror(-error))


def connects_to_held() -> None:
    connects(_HOLD_PORT)


def connects_to_held_name() -> None:
    connects_to(f"\0{_HOLD_NAME}")


def has_held_memory() -> None:
    call("shmget", _HOLD_KEY, 0, 0)


def opens_held(folder: str) -> None:
    opens(f"{folder}/{_HOLD_NAME}")


def hold(text: str) -> None:
    """Hold a port, an abstract socket, SysV memory, and files in /tmp and /dev/shm until killed. `text`: the content of
    the files; other sessions also look for it among the arguments of processes.
    """
    port, name = socket.create_server(("127.0.0.1", _HOLD_PORT)), socket.socket(socket.AF_UNIX)
    name.bind(f"\0{_HOLD_NAME}")
    name.listen()
    call("shmget", _HOLD_KEY, 4096, 0o1666)
    for folder in ("/tmp", "/dev/shm"):
        with open(f"{folder}/{_HOLD_NAME}", "w") as file:
            file.write(text)
    print("ready", flush=True)
    signal.pause()
    port.close()


# --- trying


def outcome(attempt: Callable[[], object], *, apart: bool) -> str:
    """Make the attempt in a forked process and return its outcome. `apart`: in a mount namespace of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with contextlib.suppress(OSError):
            os.setsid()
        if apart:
            call("unshare", 0x20000)
            call("mount", None, b"/", None, 1 << 18 | 1 << 14, None)  # MS_PRIVATE, MS_REC
        os.write(writer, _make(attempt).encode())
        os._exit(0)
    os.close(writer)
    try:
        if not select.select([reader], [], [], LONGEST_S)[0]:
            os.kill(child, signal.SIGKILL)
        return os.read(reader, 4096).decode() or "no outcome"
    finally:
        os.close(reader)
        os.waitpid(child, 0)


def _make(attempt: Callable[[], object]) -> str:
    try:
        found = attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except Exception as error:
        return f"broken: {error!r}"
    return found if isinstance(found, str) else REACHED


def main(verb: str, argument: str) -> None:
    if verb == "hold":
        hold(argument)
        return
    with open(argument) as file:
        plan = json.load(file)
    names = globals() | {"facts": SimpleNamespace(**plan["facts"])}
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    found = {
        name: outcome(lambda text=text: eval(text, names), apart=verb == "control")
        for name, text in plan["attempts"].items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
