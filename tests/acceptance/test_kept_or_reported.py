"""Unread data, locks and timers of a captured program are in the copies, or the checkpoint reports their loss."""

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.acceptance.restoring import WAYS, Way, in_process, new_name, restore_as, started
from tests.answers import unusual
from tests.homes import Home
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

# An HTTP server with a thread for each request, and six clients that send requests as fast as they can.
BUSY = """
import collections, http.server, json, os, threading, urllib.request
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answer")
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Answer)
threading.Thread(target=server.serve_forever).start()
done, noting = collections.Counter(), threading.Lock()
def ask():
    while True:
        try:
            assert urllib.request.urlopen("http://127.0.0.1:8000/", timeout=60).read() == b"answer"
            how = "well"
        except Exception as error:
            how = repr(error)
        with noting:
            done[how] += 1
            with open("/root/.done", "w") as file:
                json.dump(done, file)
            os.replace("/root/.done", "/root/done")
for _ in range(6):
    threading.Thread(target=ask).start()
"""
UNREAD = """
import ctypes, os, socket, threading, time
libc = ctypes.CDLL(None)
libc.inotify_add_watch(libc.inotify_init1(0), b"/root", 0x100)
open("/root/new", "w")
listener = socket.create_server(("127.0.0.1", 8001))
caller = socket.create_connection(("127.0.0.1", 8001))
receiver = socket.socket(type=socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 8002))
socket.socket(type=socket.SOCK_DGRAM).sendto(b"unread", ("127.0.0.1", 8002))
server = socket.create_server(("127.0.0.1", 8003))
reader = socket.create_connection(("127.0.0.1", 8003))
writer, _ = server.accept()
writer.setblocking(False)
sent = 0
try:
    while True:
        sent += writer.send(bytes(1 << 16))
except BlockingIOError:
    writer.close()
def read():
    while not os.path.exists("/root/read"):
        time.sleep(0.02)
    got = 0
    try:
        while part := reader.recv(1 << 16):
            got += len(part)
    except ConnectionResetError:
        pass
    open("/root/got.new", "w").write(f"{sent - got}")
    os.rename("/root/got.new", "/root/got")
threading.Thread(target=read).start()
"""
LOCKS = """
import ctypes, fcntl, mmap, struct, sys
files = [open(f"/root/{name}", "w+b") for name in ("mapped", "plain")]
for file in files:
    file.write(bytes(4096))
    file.flush()
mapped = mmap.mmap(files[0].fileno(), 4096)
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 120)
libc = ctypes.CDLL(None)
if sys.argv[1] == "filter":  # a seccomp filter that kills the program at fcntl(2)
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, 72), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, struct.pack("@HP", 4, ctypes.addressof(program)))
if sys.argv[1] == "no-vdso":
    for line in open("/proc/self/maps").readlines():
        if "[v" in line and "syscall" not in line:
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            libc.munmap(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin))
    libc.creat(b"/root/ready", 0o600)
    libc.pause()
"""
IS_LOCKED = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 120)
    print("free")
except OSError:
    print("locked")
"""
# A timer that expires every 20 ms. The program reads the expiries only once the file /root/read exists.
TIMER = """
import ctypes, os, pathlib, struct, time
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
libc.timerfd_settime(timer, 0, struct.pack("qqqq", 0, 20_000_000, 0, 20_000_000), None)
while "ticks: 0\\n" in open(f"/proc/self/fdinfo/{timer}").read():
    time.sleep(0.02)
open("/root/ready", "w")
while not os.path.exists("/root/read"):
    time.sleep(0.02)
for number in range(3):
    assert os.read(timer, 8) != bytes(8)
    open(f"/root/ticked-{number}", "w")
"""


# A server at a Unix socket whose file was renamed after the bind.
NAMED = """
import os, socket, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind("/root/socket.new")
listener.listen()
if sys.argv[1] == "renamed":
    os.rename("/root/socket.new", "/root/socket")
else:
    os.link("/root/socket.new", "/root/socket")
    os.unlink("/root/socket.new")
def answer():
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"answer")
        connection.close()
threading.Thread(target=answer).start()
"""
ASK = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/root/socket'); print(s.recv(9).decode())"


def run(session: Session, text: str, ready: str = "/root/ready", argument: str = "") -> None:
    """Start a Python program in the background and wait until it has made the file `ready`."""
    wait = f"import time\nopen({ready!r}, 'w')\nwhile True:\n    time.sleep(1000)\n" if ready == "/root/ready" else ""
    session.run("sh", "-c", "cat >/root/program.py", stdin=(text + wait).encode())
    session.exec(f"python3 /root/program.py {argument} </dev/null >/root/errors 2>&1 &")
    in_process(session, f"until [ -e {ready} ] || [ -s /root/errors ]; do sleep 0.02; done")
    assert in_process(session, "cat /root/errors") == ""


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    with started(home, "root") as made:
        yield made


@pytest.mark.soak(part="load")
def test_a_busy_server_is_captured_and_answers_everywhere(home: Home, session: Session) -> None:
    """In copies, only the connections that the checkpoint reports as not yet accepted get no answer."""
    run(session, BUSY, "/root/done")
    checkpoint, said = new_name(session), list[str]()
    for _again in range(4):
        said = unusual(session.checkpoint(checkpoint, tier="live", force=True).degraded)
    assert {(one["code"], one["subject"]) for one in said} <= {("unaccepted-connections", "tcp 8000")}
    unaccepted = sum(int(one["detail"]) for one in said)
    for copy in (session, *(restore_as(home, session, checkpoint, "fork") for _ in range(2))):
        before = json.loads(in_process(copy, "cat /root/done"))["well"]
        in_process(copy, f"until grep -vq '\"well\": {before}[,}}]' /root/done; do sleep 0.02; done")
        done = json.loads(in_process(copy, "cat /root/done"))
        assert done.pop("well") > before
        assert sum(done.values()) <= (0 if copy is session else unaccepted)


@pytest.mark.parametrize("way", WAYS)
def test_unread_data_of_a_program_is_reported(home: Home, session: Session, way: Way) -> None:
    run(session, UNREAD)
    checkpoint = new_name(session)
    said = unusual(session.checkpoint(checkpoint, tier="live").degraded)
    assert [(one["code"], re.sub(r"\d+, fd \d+|(?<=to tcp )\d+", "N", one["subject"])) for one in said] == [
        ("unaccepted-connections", "tcp 8001"),
        ("unread-datagrams", "udp 8002"),
        ("unsent-data", "tcp 8003 to tcp N"),
        ("unread-notices", "python3 (pid N)"),
    ]
    copy = restore_as(home, session, checkpoint, way)
    assert in_process(copy, "pgrep -fc [p]rogram.py") == "1\n"
    missing = "touch /root/read; until [ -e /root/got ]; do sleep 0.02; done; cat /root/got"
    assert 0 < int(in_process(copy, missing)) <= int(said[2]["detail"])  # the kernel sends a part during the dump
    if way == "fork":
        assert in_process(session, missing) == "0"


@pytest.mark.parametrize("how", ["as-usual", "filter", "no-vdso"])
def test_locks_are_kept_or_reported_as_lost(home: Home, session: Session, how: str) -> None:
    """Even a program whose filter forbids fcntl(2) keeps its locks. If it has unmapped the vDSO, one lock is lost."""
    run(session, LOCKS, argument=how)
    checkpoint, is_lost = new_name(session), how == "no-vdso"
    assert unusual(session.checkpoint(checkpoint, tier="live").degraded) == []
    said = home.must("fork", checkpoint, f"{session.branch}-said")
    assert ("the lock on /root/mapped of python3 (pid " in f"{said.stdout}{said.stderr}") == is_lost
    copy = restore_as(home, session, checkpoint, "fork")
    locked = f"python3 -c {shlex.quote(IS_LOCKED)}"
    for one, found in ((session, "locked"), (copy, "free" if is_lost else "locked")):
        there = in_process(one, f"{locked} /root/mapped; {locked} /root/plain; pgrep -fc [p]rogram.py")
        assert there.split() == [found, "locked", "1"]


@pytest.mark.parametrize("way", WAYS)
def test_a_periodic_timer_with_unread_expiries_continues(home: Home, session: Session, way: Way) -> None:
    run(session, TIMER, "/root/ready")
    checkpoint = new_name(session)
    session.checkpoint(checkpoint, tier="live")
    copy = restore_as(home, session, checkpoint, way)
    in_process(copy, "touch /root/read; timeout 60 sh -c 'until [ -e /root/ticked-2 ]; do sleep 0.02; done'")


@pytest.mark.parametrize("how", ["renamed", "linked"])
def test_a_renamed_unix_socket_answers_in_copies(home: Home, session: Session, how: str) -> None:
    run(session, NAMED, argument=how)
    for _again in range(2):
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        fork = restore_as(home, session, checkpoint, "fork")
        session.restore(checkpoint)
        for one in (fork, session):
            assert in_process(one, f'timeout 60 python3 -c "{ASK}"; ls /root/socket*') == "answer\n/root/socket\n"
