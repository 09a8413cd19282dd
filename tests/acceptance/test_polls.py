"""A poll(2) that waits for ever does not end in a capture: not in the original, nor in copies."""

import pytest

from tests.acceptance.moments import alone, new_name, started
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.client import Client, Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

# As a C program calls it: Python's own call asks again by itself. Tells what it returns, and errno.
POLL = """
import ctypes, os, sys, threading
call, place = ctypes.CDLL(None, use_errno=True).poll, "/srv/" + sys.argv[1]
class Wanted(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
os.mkfifo(place)
wanted = Wanted(os.open(place, os.O_RDWR), 1, 0)
def poll():
    result = call(ctypes.byref(wanted), 1, int(sys.argv[2]))
    open(place + ".new", "w").write(f"{result} {ctypes.get_errno()}"); os.rename(place + ".new", place + ".result")
thread = threading.Thread(target=poll)
(thread.start if "thread" in sys.argv else poll)()
"""
SCRIPT = """
mkfifo /srv/in
setsid sh -c 'exec 7<>/srv/in; script -q -f -c cat /srv/typescript <&7 >/dev/null 2>&1 7>&-' >/srv/log 2>&1 </dev/null &
until [ -e /srv/typescript ]; do sleep 0.05; done
"""


def wait_in_poll(session: Session, program: str) -> None:
    """Wait until a thread of the program is in the call."""
    words = f"for p in $(pgrep -f '{program}'); do cat /proc/$p/task/*/syscall; done | grep -q '^7 '"
    wait_until(lambda: session.run("sh", "-c", words).exit == 0, "it polls")


def wait_said(session: Session, file: str, said: str) -> None:
    wait_until(lambda: said in session.run("cat", f"/srv/{file}").stdout.decode(), f"{file} has {said}")


@pytest.mark.parametrize("how", [(), ("thread",)], ids=["alone", "in a thread"])
def test_a_poll_that_waits_for_ever_goes_on_and_one_with_a_timeout_ends(home: Home, how: tuple[str, ...]) -> None:
    with started(home, "root") as session:
        session.run("sh", "-c", "cat >/srv/poll.py", stdin=POLL.encode())
        for name, timeout in (("endless", "-1"), ("bounded", "1000000")):
            session.exec(f"python3 /srv/poll.py {name} {timeout} {' '.join(how)} &")
            wait_in_poll(session, f"poll.py {name}")
        name = new_name(session)
        for _ in range(3):
            session.checkpoint(name, tier="live", force=True)
        (copy,) = Client(home.path).fork(name, f"{session.branch}-1")
        for one in (session, copy):
            wait_said(one, "bounded.result", "-1 4")  # the control: interrupted
            assert one.run("ls", "/srv/endless.result").exit == 2
            one.run("sh", "-c", "echo >/srv/endless")
            wait_said(one, "endless.result", "1 0")


@pytest.mark.requires("script")
def test_script_goes_on_recording_in_the_original_and_in_copies(home: Home) -> None:
    with started(home, "root") as session:
        session.exec(SCRIPT)
        wait_in_poll(session, "script -q")
        name = new_name(session)
        session.checkpoint(name, tier="live")
        (copy,) = Client(home.path).fork(name, f"{session.branch}-1")
        for word, one in (("original", session), ("copy", copy)):
            alone(one, f"timeout 5 sh -c 'echo the-{word} >/srv/in'")
            wait_said(one, "typescript", f"the-{word}")
        session.restore(name)
        alone(session, "timeout 5 sh -c 'echo again >/srv/in'")
        wait_said(session, "typescript", "again")
