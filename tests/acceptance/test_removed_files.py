"""Open and mapped files whose names were removed: the running session is unchanged, and every copy has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restoring import in_process, in_shell, new_name, restore_as, started
from tests.homes import Home, open_home
from waypoint.client.sdk import Session

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("criu", "own-criu"),
]

HOLDER = Path(__file__).with_name("name_holder.py")
PROGRAMS = 20
ANSWER = """\
nameless: kept kept kept kept kept
linked: written written written written
links: 0 0 0 0 0 1 1 1 1 1
fifo: written
names: below c dangling file link stays t watched
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("nameless") as made:
        yield made


def answer(session: Session) -> str:
    """What the program writes after it was asked."""
    return in_process(
        session, ": >/root/held.ask; until grep names: /root/held.log >&2; do sleep 0.02; done; cat /root/held.log"
    )


def test_open_files_without_a_name(home: Home) -> None:
    """Among them files with a long name, files whose folder is a file or a link now, and files with another name."""
    with started(home, "root") as session:
        session.run("sh", "-c", "cat >/root/holder.py", stdin=HOLDER.read_bytes())
        session.exec("python3 /root/holder.py </dev/null >/root/held.errors 2>&1 &")
        in_process(session, "until [ -e /root/held.log ] || [ -s /root/held.errors ]; do sleep 0.02; done")
        assert in_process(session, "cat /root/held.errors /root/held.log") == "ready\n"
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        copy = restore_as(home, session, checkpoint, "fork")
        again = new_name(session)
        copy.checkpoint(again, tier="live")  # the restored session is captured
        assert answer(copy).partition("\n")[2] == ANSWER
        assert answer(restore_as(home, session, again, "fork")).partition("\n")[2] == ANSWER
        assert answer(session) == f"watched: unchanged\n{ANSWER}"
        assert answer(restore_as(home, session, checkpoint, "restore")).partition("\n")[2] == ANSWER


def test_programs_that_were_replaced_while_they_run(home: Home) -> None:
    """As libc in an upgrade. CRIU restores the processes at the same time, and each of them opens the removed file."""
    with started(home, "root") as session:
        in_shell(session, "cp /bin/sleep /root/program")
        session.exec(f"for n in $(seq {PROGRAMS}); do /root/program 1000 & done")
        in_shell(session, "cp /bin/sleep /root/new; mv /root/new /root/program")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for _fork in range(4):
            copy = restore_as(home, session, checkpoint, "fork")
            programs = in_shell(copy, "for p in $(jobs -p); do readlink /proc/$p/exe; done")
            assert [one.startswith("/root/program") for one in programs.splitlines()] == [True] * PROGRAMS
            assert in_shell(copy, "ls /root | grep program") == "program\n"
            copy.stop(discard=True)
