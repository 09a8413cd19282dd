"""The terminals that programs of a session have made: a capture changes nothing for their readers, in the session or in
a copy, even if the daemon or CRIU is killed while the bytes are out of the terminals.
"""

import json

import pytest

from tests.answers import unusual
from tests.session import ledger
from tests.session.test_capture_faults import Case, kill
from tests.session.transactions import PausableHome
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

PROGRAM = r"""
import fcntl, json, os, pty, struct, subprocess, termios, time, tty
def lines(fd):
    found = []
    os.set_blocking(fd, False)
    try:
        while True: found.append(os.read(fd, 4096).decode())
    except BlockingIOError: return found
    except OSError: return [*found, "closed"]
def until(end, fd, found=b""):
    os.set_blocking(fd, True)
    while end not in found: found += os.read(fd, 4096)
    return found.decode()
line = pty.openpty(); os.write(line[1], b"caf\xc3\xa9\n"); os.write(line[0], b"hello\nwor")
raw = pty.openpty(); tty.setraw(raw[1]); os.write(raw[0], b"\x03\x04\r\n\x13\0\xff")
closed = pty.openpty(); os.write(closed[1], b"last\n"); os.close(closed[1])
packet = pty.openpty(); fcntl.ioctl(packet[0], termios.TIOCPKT, struct.pack("i", 1)); os.write(packet[1], b"data\n")
termios.tcflush(packet[1], termios.TCIFLUSH)
stopped = pty.openpty(); os.write(stopped[1], b"before\n"); termios.tcflow(stopped[1], termios.TCOOFF)
full, inside = pty.openpty(); count = subprocess.Popen(["seq", "10000"], stdout=inside, stderr=inside); os.close(inside)
while struct.unpack("i", fcntl.ioctl(full, termios.FIONREAD, bytes(4)))[0] < 4000: time.sleep(0.01)
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/go"): time.sleep(0.01)
got = {}
got["echo"] = until(b"wor", line[0])
os.write(line[0], b"ld\n"); until(b"ld\r\n", line[0])
got["line"] = lines(line[1])
got["raw"] = os.read(raw[1], 99).hex()
got["closed"] = lines(closed[0])
got["packet"] = lines(packet[0])
termios.tcflow(stopped[1], termios.TCOON); os.write(stopped[1], b"after\n")
got["stopped"] = until(b"after", stopped[0])
numbers, part = [], b""
while len(numbers) < 10000:
    *new, part = (part + os.read(full, 4096)).split(b"\r\n")
    numbers += map(int, new)
got["full"] = numbers == [*range(1, 10001)]
json.dump(got, open("/tmp/.got", "w")); os.rename("/tmp/.got", "/tmp/got")
"""
EXPECTED = {
    "echo": "café\r\nhello\r\nwor",
    "line": ["hello\n", "world\n"],
    "raw": "03040d0a1300ff",
    "closed": ["last\r\n", "closed"],
    "packet": ["\x01", "\0data\r\n"],
    "stopped": "before\r\nafter\r\n",
    "full": True,
}


def run_until(session: Session, wanted: str, then: str = "true") -> bytes:
    """Wait until the file `wanted` exists or the program has ended; return the output of `then`."""
    wait = f"until [ -e {wanted} ] || ! pgrep -f terminals.py >/dev/null; do sleep 0.01; done; cat /tmp/said; {then}"
    return session.run("sh", "-c", wait).stdout


def got(session: Session) -> object:
    session.run("touch", "/tmp/go")
    return json.loads(run_until(session, "/tmp/got", "cat /tmp/got"))


@pytest.mark.parametrize(
    ("victim", "step"),
    [
        ("daemon", Step.DUMPED),
        pytest.param("daemon", Step.DRAINED, marks=pytest.mark.soak(part="faults")),
        pytest.param("criu", Step.DUMPED, marks=pytest.mark.soak(part="faults")),
    ],
)
def test_no_reader_of_an_inner_terminal_notices_a_capture(w: PausableHome, victim: str, step: Step) -> None:
    session = w.client.session("w")
    session.run("sh", "-c", "cat > /tmp/terminals.py", stdin=PROGRAM.encode())
    session.exec("python3 /tmp/terminals.py > /tmp/said 2>&1 &")
    assert run_until(session, "/tmp/ready") == b""
    with (
        w.pauses.armed(step) as armed,
        w.home.background("checkpoint", "first", "-b", "w", "--tier", "live") as command,
    ):
        assert armed.wait() == step
        kill(Case("checkpoint", step, victim), w, command)
        if victim != "daemon":
            armed.go_on()
        command.wait(PATIENCE_S)
    session = w.client.session("w")
    assert unusual(session.checkpoint("second", tier="live").degraded) == []
    w.home.must("fork", "second", "f")
    assert got(w.client.session("f")) == EXPECTED
    assert got(session) == EXPECTED
    ledger.check(w.home)
