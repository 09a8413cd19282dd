"""Attempts to reach what lies outside of a session. A program of its own: the standard library only.

    python3 -I attempts.py try PLAN       try each expression of the plan, print a JSON object of the outcomes
    python3 -I attempts.py control PLAN   the same for a caller outside of all sessions: with mounts of its own
    python3 -I attempts.py hold TEXT      have what another session must not reach, until killed

PLAN is a file of JSON: {"facts": ..., "attempts": {name: expression}}. An expression calls functions of this file; in
it `facts` has what the test has made outside. Nothing harmful is done, not even where the attempt succeeds: what is
written is what was there, and system calls get arguments by which they do nothing once the caller's right is known.

An outcome is the name of an errno, the word for what was found instead that the expression gives, or `reached`.
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
LONGEST_S = 60  # an attempt that takes longer hangs

_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {
    "x86_64": {"delete_module": 176, "finit_module": 313, "init_module": 175, "bpf": 321, "kexec_load": 246}
    | {"ioprio_set": 251, "reboot": 169, "settimeofday": 164},
    "aarch64": {"delete_module": 106, "finit_module": 273, "init_module": 105, "bpf": 280, "kexec_load": 104}
    | {"ioprio_set": 30, "reboot": 142, "settimeofday": 170},
}[os.uname().machine] | {"open_tree": 428, "fsopen": 430}
"""Those that libc has no function for, or checks the arguments of."""

_HOLD_PORT = 4711
_HOLD_KEY = 0x77617970
_HOLD_NAME = "waypoint-test-held"


def call(name: str, *args: "int | bytes | ctypes.Array[ctypes.c_char] | None", passed: tuple[int, ...] = ()) -> int:
    """Make the system call `name`. `passed`: what it says only to those who have the right to it."""
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


def lists(path: str) -> str | None:
    return None if os.listdir(path) else "empty"


def has_line(path: str, text: str) -> str | None:
    with open(path, errors="replace") as file:
        return None if text in file.read() else "not there"


def makes_a_node_of(device: str) -> None:
    """And opens it."""
    with _scratch() as folder:
        os.mknod(f"{folder}/node", 0o600 | stat.S_IFBLK, _number_of(device))
        opens(f"{folder}/node")


def _number_of(device: str) -> int:
    with open(f"/sys/block/{device}/dev") as file:
        major, minor = map(int, file.read().split(":"))
    return os.makedev(major, minor)


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
    """As the program `shocker` did: the number of a file is enough to open it."""
    content = bytes.fromhex(handle)
    buffer = ctypes.create_string_buffer(struct.pack("Ii", len(content), kind) + content)
    fd = os.open(folder, os.O_RDONLY)
    os.close(call("open_by_handle_at", fd, buffer, os.O_RDONLY))


def leaves_a_chroot(root: list[int]) -> str | None:
    """The oldest way out of chroot(2): the current directory lies outside of the root."""
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
    # EBUSY: a first version hierarchy has the controllers
    call("mount", b"none", where.encode(), fstype.encode(), 0, None, passed=(errno.EBUSY,))


def mounts_cgroups() -> None:
    """In namespaces of its own: who owns the cgroup namespace may. Those of the machine are in the mount."""
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
    call("kexec_load", 0, 0, None, 0xFFFF, passed=(errno.EINVAL,))  # flags that there are none of


def sets_what_three_keys_do() -> None:
    """reboot(2), by which ctrl-alt-del stays as it is."""
    with open("/proc/sys/kernel/ctrl-alt-del") as file:
        command = 0x89ABCDEF if int(file.read()) else 0
    call("reboot", 0xFEE1DEAD, 672274793, command, None)


def steers_the_clock() -> None:
    state = ctypes.create_string_buffer(256)
    call("adjtimex", state)
    struct.pack_into("I", state, 0, 0x4000)  # ADJ_TICK, as it is
    call("adjtimex", state)


def gets_ports() -> str | None:
    if os.uname().machine != "x86_64":
        raise OSError(errno.ENOSYS, "only x86 has them")
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
    """EBUSY: somebody has it, who is to give it back first."""
    _master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, 0x541D)  # TIOCCONS
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


def holds(*capabilities: int) -> str | None:
    """One of these, at least in the bounding set."""
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
    """In the environment or the arguments of any process."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", errors="replace") as file:
                if secret in file.read():
                    return None
    return "not there"


def sees_terminals_of(device: int) -> str | None:
    """Of the devpts with this device number."""
    found = [os.stat(f"/dev/pts/{name}").st_dev for name in os.listdir("/dev/pts")]
    return None if device in found else "its own"


# --- what processes talk over


def connects(port: int, address: str = "127.0.0.1") -> None:
    socket.create_connection((address, port), 5).close()  # a refusal comes at once


def connects_to(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def writes_to_the_reader_of(fifo: str) -> None:
    opens(fifo, os.O_WRONLY)


def sees_interfaces() -> str | None:
    """Those of a session are `lo`, and its end of the pair that leads out, which has this hardware address."""
    with socket.socket() as any_socket:
        others = [name.encode() for _, name in socket.if_nameindex() if name != "lo"]
        found = [fcntl.ioctl(any_socket, 0x8927, name.ljust(40, b"\0"))[18:24] for name in others]  # SIOCGIFHWADDR
    return None if [one for one in found if one != b"\x02\0\x0a\x4d\0\x01"] else "its own"


def sets_an_interface() -> None:
    """Loopback, to what it is."""
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
    """Have a port, an abstract socket, SysV memory, files in /tmp and /dev/shm, until killed. `text`: as the process's
    argument it is what others look for.
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
    """What comes of an attempt that is made in a process of its own; `apart`: whose mounts nobody else sees."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with contextlib.suppress(OSError):
            os.setsid()
        if apart:
            call("unshare", 0x20000)
            call("mount", None, b"/", None, 1 << 18 | 1 << 14, None)  # MS_PRIVATE, MS_REC
        os.write(writer, _said(attempt).encode())
        os._exit(0)
    os.close(writer)
    try:
        if not select.select([reader], [], [], LONGEST_S)[0]:
            os.kill(child, signal.SIGKILL)
        return os.read(reader, 4096).decode() or "no word from it"
    finally:
        os.close(reader)
        os.waitpid(child, 0)


def _said(attempt: Callable[[], object]) -> str:
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
