"""Helpers that start a session and restore a checkpoint of it: as a fork, or in place of the running session."""

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
# A background process that prints on the terminal and writes and renames files for ever.
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
    """Start a live session on a new branch; at the end, discard it and all its forks.

    With mood `busy`, output flows on its terminal, a background process writes files, and a client is attached.
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


def restore_as(home: Home, session: Session, checkpoint: str, way: Way) -> Session:
    """Restore `checkpoint` with its processes as a new fork or in place of `session`; return the restored session."""
    if way == "restore":
        session.restore(checkpoint, tier="live")
        return session
    [fork] = Client(home.path).fork(checkpoint, f"{session.branch}-{next(_NUMBERS)}", tier="live")
    return fork


def new_name(session: Session) -> str:
    """Return an unused name for a checkpoint of the session."""
    return f"{session.branch}.{next(_NUMBERS)}"


def in_shell(session: Session, text: str) -> str:
    """Run `text` in the session's shell, which must succeed, and return only what the command itself prints."""
    done = session.exec(f"{{ {text}\n}} >|/tmp/.said 2>&1")
    said = session.run("cat", "/tmp/.said").stdout.decode(errors="surrogateescape")
    assert done.exit == 0, f"{text}: exit {done.exit}: {said}{done.output[-500:]!r}"
    return said


def in_process(session: Session, text: str) -> str:
    """Run `text` in a new process of the session, not in its shell; it must succeed. Return its stdout."""
    done = session.run("sh", "-c", text)
    assert done.exit == 0, f"{text}: exit {done.exit}: {done.stdout!r}{done.stderr!r}"
    return done.stdout.decode(errors="surrogateescape")


@contextlib.contextmanager
def _watched(session: Session) -> Iterator[None]:
    """Keep a client attached that reads all output."""
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
