"""Makes processes, files, sockets etc. outside of all sessions, so that attempts can tell whether they reach them."""

import contextlib
import ctypes
import os
import secrets
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.isolation.attempts import call
from tests.places import make_temp_root
from waypoint.linux.calls.libc import syscall

Facts = dict[str, object]

ATTEMPTS = Path(__file__).with_name("attempts.py")
_SESSION_KEYRING = -3
_IPC_RMID = 0
_MINE = 0o1600  # IPC_CREAT, accessible to the owner only


@contextlib.contextmanager
def public_folder(purpose: str) -> Iterator[Path]:
    """Yield a folder that every user can read, and that has the same path in every session."""
    with tempfile.TemporaryDirectory(prefix=f"{purpose}-{os.getpid()}-", dir=make_temp_root()) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def open_things(folder: Path) -> Iterator[Facts]:
    """Make everything that attempts look for, and yield its description. `folder`: a folder that every session sees."""
    with contextlib.ExitStack() as stack:
        root = os.stat("/")
        facts: Facts = {"folder": str(folder), "root": [root.st_dev, root.st_ino], "disk": _disk()}
        facts["disk_number"] = os.stat(f"/dev/{facts['disk']}").st_rdev if facts["disk"] != "none" else 0
        facts |= _processes(stack) | _files(stack, folder) | _sockets(stack, folder) | _memory(stack)
        yield facts


def _disk() -> str:
    """Return the name of a block device that can be opened, preferably a real disk."""
    found = sorted(Path("/sys/block").iterdir(), key=lambda one: one.name.startswith(("loop", "ram", "zram")))
    for one in found:
        with contextlib.suppress(OSError), open(f"/dev/{one.name}", "rb"):
            return one.name
    return "none"


def _processes(stack: contextlib.ExitStack) -> Facts:
    """Start a process with a secret in its environment, open a terminal, and add a key to this process's keyring."""
    secret = f"secret-{secrets.token_hex(8)}"
    held = f"held-{secrets.token_hex(8)}"
    process = stack.enter_context(subprocess.Popen(["sleep", "1000"], env={"SECRET": secret}))
    stack.callback(process.kill)
    master, slave = os.openpty()
    stack.callback(os.close, master)
    stack.callback(os.close, slave)
    with contextlib.suppress(OSError):  # the kernel has no keyrings
        syscall("add_key", b"user", secret.encode(), b"x", 1, _SESSION_KEYRING)
    return {"pid": process.pid, "secret": secret, "held": held, "terminals": os.fstat(slave).st_dev}


def _files(stack: contextlib.ExitStack, folder: Path) -> Facts:
    """Make a node of /dev/zero and a file with a known handle in `folder`, and files in /run and /dev/shm."""
    os.mknod(folder / "node", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    (folder / "node").chmod(0o666)
    run = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/run", prefix=f"waypoint-test-{os.getpid()}-")))
    run.chmod(0o755)
    (run / "file").touch()
    shm = Path(f"/dev/shm/waypoint-test-{os.getpid()}")
    shm.touch()
    stack.callback(shm.unlink)
    (folder / "file").touch()
    kind, handle = _handle(folder / "file")
    return {"run": str(run), "shm": str(shm), "handle": [kind, handle.hex()]}


def _handle(path: Path) -> tuple[int, bytes]:
    """Return the type and the bytes of the file's handle, see name_to_handle_at(2)."""
    buffer = ctypes.create_string_buffer(8 + 128)
    size = ctypes.c_uint.from_buffer(buffer)
    kind = ctypes.c_int.from_buffer(buffer, 4)
    size.value = 128
    mount = ctypes.create_string_buffer(8)
    call("name_to_handle_at", -100, os.fsencode(path), buffer, mount, 0)  # AT_FDCWD
    return kind.value, buffer.raw[8 : 8 + size.value]


def _sockets(stack: contextlib.ExitStack, folder: Path) -> Facts:
    port = stack.enter_context(socket.create_server(("", 0))).getsockname()[1]
    abstract = f"waypoint-test-{secrets.token_hex(8)}"
    run = stack.enter_context(tempfile.TemporaryDirectory(dir="/run", prefix=f"waypoint-test-{os.getpid()}-"))
    os.chmod(run, 0o755)
    for name in (f"\0{abstract}", f"{folder}/socket", f"{run}/socket"):
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(name)
        listener.listen(64)
    os.chmod(folder / "socket", 0o777)
    os.chmod(f"{run}/socket", 0o777)
    os.mkfifo(folder / "fifo")
    (folder / "fifo").chmod(0o666)
    stack.callback(os.close, os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK))
    return {"port": port, "address": _address(), "abstract": abstract, "socket": f"{run}/socket"}


def _address() -> str:
    """Return the machine's address on its network, or an unused address if the machine has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))  # sends no packet
        except OSError:
            return "192.0.2.1"
        return str(any_socket.getsockname()[0])


def _memory(stack: contextlib.ExitStack) -> Facts:
    """Make shared memory, a message queue and semaphores with one key, and a named message queue."""
    key = secrets.randbits(30) | 1
    stack.callback(call, "shmctl", call("shmget", key, 4096, _MINE), _IPC_RMID, None)
    stack.callback(call, "msgctl", call("msgget", key, _MINE), _IPC_RMID, None)
    stack.callback(call, "semctl", call("semget", key, 1, _MINE), 0, _IPC_RMID)
    queue = f"/waypoint-test-{key}"
    stack.callback(os.close, call("mq_open", queue.encode(), os.O_CREAT | os.O_RDWR, 0o600, None))
    stack.callback(call, "mq_unlink", queue.encode())
    return {"key": key, "queue": queue}
