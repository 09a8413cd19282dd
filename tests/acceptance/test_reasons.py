"""A checkpoint that CRIU refuses names the program, its pid in the session and the reason, and a next step."""

import json
import re

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.answers import unusual
from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

BEGIN = "import ctypes, fcntl, os, signal, socket, threading, time; libc = ctypes.CDLL(None)"
END = "open('/tmp/on', 'w').close(); time.sleep(1000)"
# Attaches a segment of System V shared memory of three pages whose second one can only be read.
SEGMENT = """
libc.shmat.restype = ctypes.c_void_p; libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
place = libc.shmat(libc.shmget(0, 3 * 4096, 0o1600), None, 0); libc.mprotect(place + 4096, 4096, 1)
""".strip()
# The code of the error, the end of the sentence about the program, and a program.
REFUSED = {
    "packet-pipe": ("has a pipe in packet mode open (pipe2 with O_DIRECT)", "r, w = os.pipe2(os.O_DIRECT)"),
    "corked-socket": (
        "has a UDP socket open with data that it holds back",
        "s = socket.socket(2, 2); s.connect(('127.0.0.1', 9)); s.setsockopt(17, 1, 1); s.send(b'x')",
    ),
    "unread-control": (
        "has not read messages of a Unix socket that carry the sender",
        "a, b = socket.socketpair(1, 2); b.setsockopt(1, 16, 1); a.send(b'x')",
    ),
    "unaccepted": (
        "has a connection that the server has not accepted",
        "s = socket.socket(1); s.bind('\\0x'); s.listen(); c = socket.socket(1); c.connect('\\0x'); c.send(b'x')",
    ),
    "unread-netlink": (
        "has not read all messages of a netlink socket",
        "s = socket.socket(16, 3); s.bind((0, 0)); "
        "s.send(bytes([32, 0, 0, 0, 18, 0, 1, 3, 1, 0, 0, 0]) + bytes(20)); time.sleep(0.1)",
    ),
    "pending-trap": (
        "has not yet received a SIGTRAP",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP]); os.kill(os.getpid(), signal.SIGTRAP)",
    ),
    "shared-parts": (
        "shares its memory, its folder or its open files with another process",
        "m = ctypes.create_string_buffer(65536); pause = ctypes.cast(libc.pause, ctypes.c_void_p); "
        "libc.clone(pause, ctypes.c_void_p(ctypes.addressof(m) + 65000 & -16), 0x200 | 17, None); time.sleep(0.1)",
    ),
    "long-path": (
        "uses a file, a folder or a socket whose path is too long",
        "os.chdir('/tmp')\nfor i in range(20): os.makedirs('d' * 250, exist_ok=True); os.chdir('d' * 250)\n"
        "f = open('f', 'w'); os.chdir('/')",
    ),
    "program-in-memory": (
        "runs a program from memory (memfd_create)",
        "m = os.memfd_create('m', 0); os.write(m, open('/bin/sh', 'rb').read()); "
        "os.execve(m, ['sh', '-c', ': >/tmp/on; sleep 1000; :'], os.environ)",
    ),
    "thread-file": (
        "has a file of thread ",
        "t = threading.Thread(target=time.sleep, args=(1000,)); t.start(); "
        "f = open(f'/proc/self/task/{t.native_id}/status')",
    ),
    "shared-memory": (
        "has only parts of a segment of System V shared memory",
        f"{SEGMENT}\nlibc.munmap(place + 4096, 4096)",
    ),
    "inotify": (
        "watches a file that was removed, is a symbolic link",
        "os.symlink('/tmp', '/tmp/link'); libc.inotify_add_watch(libc.inotify_init1(0), b'/tmp/link', 0x2000100)",
    ),
    "first-thread": (
        "has ended its first thread while its other threads run",
        "threading.Thread(target=lambda: (time.sleep(0.1), open('/tmp/on', 'w').close(), time.sleep(1000))).start(); "
        "libc.syscall(60, 0)",
    ),
}

ONLY_CRIU = {"unread-control", "unaccepted"}
"""CRIU finds these reasons itself. All others are found before it starts, so that there is no log."""


def test_a_refusal_names_program_and_reason_and_doctor_predicts_it(home: Home, person: Person) -> None:
    with session(home, person.name, "--shell", "bash") as branch:
        for number, (cause, (reason, program)) in enumerate(REFUSED.items()):
            text = f"{BEGIN}\n{program}\n{END}"
            inside(home, branch, f"cat >/tmp/{number}.py <<'END'\n{text}\nEND")
            start = f"rm -f /tmp/on; python3 /tmp/{number}.py & until [ -e /tmp/on ]; do sleep 0.02; done"
            pid = inside(home, branch, f"{start}; echo $!").split()[-1]
            predicted = [one for one in home.cli("doctor", branch, "--json").json() if one["tier"] != "live"]
            refused = home.cli("checkpoint", "refused", "-b", branch, "--tier", "live", "--json")
            error = refused.json()["error"]
            assert (error["code"], refused.code) == (f"criu-{cause}", 5), error
            named = r"\d+" if cause == "shared-parts" else pid  # CRIU finds the other process first
            assert re.match(rf"\S+ \(pid {named}(, fd \d+)?\) {re.escape(reason)}", error["said"]), error
            log = re.search(r"--criu-log (\S+)\)", error["on"])
            seen = [(one["code"], one["why"], one["remedy"]) for one in predicted]
            assert seen == ([] if cause in ONLY_CRIU else [(error["code"], error["said"], error["next"])])
            text = home.must("doctor", "--criu-log", log[1]).stdout if log else ""
            assert ("Dumping FAILED" in text) == (cause in ONLY_CRIU), error
            assert not log or json.loads(inside(home, branch, f"waypoint doctor --criu-log {log[1]} --json"))["lines"]
            within = json.loads(inside(home, branch, "waypoint doctor --json"))
            assert [one for one in within if one["tier"] != "live"] == predicted
            inside(home, branch, f"kill -KILL {pid}; wait {pid} 2>/dev/null; true")
        inside(home, branch, f"cat >/tmp/whole.py <<'END'\n{BEGIN}\n{SEGMENT}\n{END}\nEND")
        inside(home, branch, "rm -f /tmp/on; python3 /tmp/whole.py & until [ -e /tmp/on ]; do sleep 0.02; done")
        assert {one["tier"] for one in home.must("doctor", branch, "--json").json()} == {"live"}
        made = home.must("checkpoint", "taken", "-b", branch, "--json").json()
        assert (made["tier"], unusual(made["degraded"])) == ("live", [])
        unknown = home.cli("exec", "-b", branch, "--", "waypoint doctor --criu-log ../names")
        assert (unknown.code, "no log of this name is kept" in unknown.stdout) == (2, True)
