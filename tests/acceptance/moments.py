"""Sessions that were brought back: as a fork, or in place of what they have become since."""

import contextlib
import itertools
import select
import threading
from collections.abc import Iterator
from typing import Literal

from tests.homes import Home
from waypoint.client import Client
from waypoint.client.sdk import Session

Way = Literal["fork", "restore"]
WAYS: tuple[Way, ...] = ("fork", "restore")
Mood = Literal["quiet", "busy"]
MOODS: tuple[Mood, ...] = ("quiet", "busy")

_NUMBERS = itertools.count(1)
# Prints on the terminal, and writes and renames files, for ever; a job of nobody's.
_NOISE = r"""
setsid sh -c 'n=0
while :; do
  n=$((n + 1)); printf "noise %s\r\n" $n; echo $n >>/tmp/.noise
  echo $n >/tmp/.noise.new; mv /tmp/.noise.new /tmp/.noise.now
  [ $((n % 50)) -gt 0 ] || { sleep 0.02; : >/tmp/.noise; }
done' >/dev/pts/0 2>&1 </dev/null & disown
"""


@contextlib.contextmanager
def started(home: Home, user: str, mood: Mood = "quiet", **setting: str) -> Iterator[Session]:
    """A live session on a branch of its own; discarded with all the forks of it at the end.

    `busy`: output flows on its terminal, a job writes files, and somebody is attached.
    """
    client = Client(home.path)
    session = client.start(f"m{next(_NUMBERS)}", user=user, cwd="/tmp", **setting)  # type: ignore[misc]
    try:
        with contextlib.ExitStack() as stack:
            if mood == "busy":
                session.exec(_NOISE)
                stack.enter_context(_watched(session))
            yield session
    finally:
        for one in client.sessions():
            if one.branch == session.branch or one.branch.startswith(f"{session.branch}-"):
                client.session(one.branch).stop(discard=True)


def brought_back(home: Home, session: Session, checkpoint: str, way: Way) -> Session:
    """`checkpoint` of the session lives again."""
    if way == "restore":
        session.restore(checkpoint)
        return session
    [fork] = Client(home.path).fork(checkpoint, f"{session.branch}-{next(_NUMBERS)}")
    return fork


def new_name(session: Session) -> str:
    """For a checkpoint."""
    return f"{session.branch}.{next(_NUMBERS)}"


def says(session: Session, text: str) -> str:
    """What a command in the session's shell that succeeds prints, whatever else is printed on the terminal."""
    done = session.exec(f"{{ {text}\n}} >|/tmp/.said 2>&1")
    said = session.run("cat", "/tmp/.said").stdout.decode(errors="surrogateescape")
    assert done.exit == 0, f"{text}: exit {done.exit}: {said}{done.output[-500:]!r}"
    return said


def alone(session: Session, text: str) -> str:
    """What a command that succeeds prints in a process of its own beside the session's shell."""
    done = session.run("sh", "-c", text)
    assert done.exit == 0, f"{text}: exit {done.exit}: {done.stdout!r}{done.stderr!r}"
    return done.stdout.decode(errors="surrogateescape")


@contextlib.contextmanager
def _watched(session: Session) -> Iterator[None]:
    """Somebody is attached, and takes what comes."""
    attachment = session.attach()
    enough = threading.Event()

    def take() -> None:
        while not enough.is_set():
            select.select([attachment], [], [], 0.05)
            if attachment.receive() is None:
                return
            attachment.flush()

    taker = threading.Thread(target=take)
    taker.start()
    try:
        yield
    finally:
        enough.set()
        taker.join()
        attachment.close()
