"""System calls that wait, and signals that wait for a stopped process, are not changed by captures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restoring import in_process, new_name, restore_as, started
from tests.homes import Home, open_home
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "own-criu")]

WAITER = Path(__file__).with_name("call_waiter.py")
ANSWER = """\
epoll 1
poll 1
semop 0
sigtimedwait 12
write 200000
signals: [1, 10, 18, 34, 34] 15
"""
INTERRUPTED = -4
COPIED = (  # calls with a relative timeout end, and the parent is told again that its child has stopped (docs/criu.md)
    ANSWER.replace("semop", f"relative_futex {INTERRUPTED}\nrelative_poll {INTERRUPTED}\nsemop").replace(
        " 15", " 15 again"
    )
)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("waiter") as made:
        yield made


def answer(session: Session) -> str:
    """What the program writes after it was asked."""
    wait = "until grep signals: /root/waiter.log >&2; do sleep 0.02; done"
    return in_process(session, f": >/root/waiter.ask; {wait}; tail -n +2 /root/waiter.log")


def test_calls_and_signals_wait_on(home: Home) -> None:
    """In a session that was captured twice live, and once without its processes; and in a copy."""
    with started(home, "root") as session:
        session.run("sh", "-c", "cat >/root/waiter.py", stdin=WAITER.read_bytes())
        session.exec("python3 /root/waiter.py </dev/null >/root/waiter.errors 2>&1 &")
        in_process(session, "until [ -e /root/waiter.log ] || [ -s /root/waiter.errors ]; do sleep 0.02; done")
        assert in_process(session, "cat /root/waiter.errors /root/waiter.log") == "ready\n"
        session.checkpoint(new_name(session), tier="respawn")
        session.checkpoint(new_name(session), tier="live")
        last = new_name(session)
        session.checkpoint(last, tier="live")
        assert answer(restore_as(home, session, last, "fork")) == COPIED
        assert answer(session) == ANSWER
