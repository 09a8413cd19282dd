"""What the chaos does with the store and with the machine's files: checkpoints that are waited for and have something
attached, eviction, exports into another home, and what a session has made on the machine and off it again.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.sessions import OF_THE_BASE, ground_of
from tests.chaos.accidents import DEADLINE_S
from tests.chaos.moving import Harmed, Moving, look
from tests.homes import Home, open_home
from tests.waiting import holds_within, wait_until
from waypoint.client.sdk import Client

SEEN_S = 2.0
"""So long the daemon may go on with what a client has asked for that was killed."""
TRACE = os.urandom(50_000)


class Surroundings:
    """`files`: a folder of the machine's that no session sees. `ground`: one in which sessions may write. Another home
    is opened when it is needed.
    """

    def __init__(self, files: Path, ground: Path, held: contextlib.ExitStack) -> None:
        self.files, self.ground, self._held = files, ground, held
        self._away: Home | None = None
        (files / "trace").write_bytes(TRACE)

    @property
    def away(self) -> Home:
        if self._away is None:
            self._away = self._held.enter_context(open_home("away"))
        return self._away


@contextlib.contextmanager
def surroundings(files: Path) -> Iterator[Surroundings]:
    with contextlib.ExitStack() as held:
        ground = held.enter_context(ground_of(OF_THE_BASE))
        ground.chmod(0o777)
        yield Surroundings(files, ground, held)


def options_of_checkpoint(moving: Moving, around: Surroundings) -> list[str]:
    """What a checkpoint is asked for besides."""
    attach = ["--attach", f"trace={around.files / 'trace'}"]
    return moving.choose.choice([[], [], ["--wait"], attach, [*attach, "--wait"]])


def check_kept(moving: Moving, around: Surroundings, name: str, options: list[str], code: int) -> None:
    """The checkpoint is there, and has what it was asked for."""
    if code == 0 and "--wait" in options:
        assert moving.client.history.show(name).durable, f"{name} was waited for and is not in the store"
    if "--attach" in options:
        target = around.files / name
        moving.home.must("layer", "get", name, "trace", str(target))
        assert target.read_bytes() == TRACE, f"what is attached to {name} is something else"
        target.unlink()


def evict(moving: Moving, _around: Surroundings, branch: str) -> None:
    """Whatever is brought back from now on comes from the store."""
    moving.accidents.run("evict", branch, "evict", "--all")


def send(moving: Moving, around: Surroundings, branch: str) -> None:
    """Export a checkpoint, and bring its processes back in another home."""
    name, file = moving.any_kept(), around.files / "sent"
    code = moving.accidents.run("export", branch, "export", name, str(file))
    if not file.exists():
        assert code != 0, f"the export of {name} was acknowledged and is not there"
        return
    away = around.away
    away.must("import", str(file), "--as", "came")
    file.unlink()
    away.must("fork", "came", "there")
    try:
        counts = set(look(Client(away.path), "there").values())
    except Harmed:
        raise Harmed(branch) from None
    finally:
        away.must("stop", "there", "--discard")
        away.must("rm", "came")
        away.must("gc", "--keep-operations", "0s")
    assert counts == {moving.kept[name]}, f"{name} has {counts} in another home"


def apply(moving: Moving, around: Surroundings, branch: str) -> None:
    """Put what a session has made onto the machine, and take it back: all of it or nothing."""
    place, count = around.ground / str(moving.number), moving.live[branch]
    making = f"mkdir {place} && echo $steps | tee {place}/one > {place}/two"
    assert moving.client.session(branch).exec(making).exit == 0
    code = moving.accidents.run("apply", branch, "apply", branch, "--", str(place))
    if not _is_there(moving, place, count, code):
        assert code != 0, "an apply was acknowledged and is not on the machine"
        return
    number = str(next(one.number for one in moving.client.history.operations() if one.verb == "apply"))
    code = moving.accidents.run("undo of apply", branch, "undo", number)
    if _is_there(moving, place, count, code):
        assert code != 0, "the undo of an apply was acknowledged and it is on the machine"
        moving.home.must("undo", number)
        assert not _is_there(moving, place, count, 0)


def _is_there(moving: Moving, place: Path, count: int, code: int) -> bool:
    """Whether the machine has what the session had made there, when nothing is under way any more."""

    def runs() -> bool:
        return any(job.kind == "apply" and job.state == "running" for job in moving.client.jobs.list())

    if code == -signal.SIGKILL:  # the client's: the daemon may go on, or only begin
        there = place.exists()
        holds_within(SEEN_S, lambda: place.exists() is not there)
    wait_until(lambda: not runs(), "no apply is under way", DEADLINE_S)
    wait_until(lambda: not list(place.parent.glob(".waypoint-*")), "nothing is under way beside it")
    found = {path.name: path.read_text() for path in place.glob("*")} if place.exists() else {}
    assert found in ({}, dict.fromkeys(("one", "two"), f"{count}\n")), f"half of an apply: {found}"
    return bool(found)
