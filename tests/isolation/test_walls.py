"""Nothing of the machine and of other sessions is reached from inside of a session: the rows of walls.py.

They are tried in sessions of root and of an ordinary user, after a start, in a fork and after a restore, with two local
mounts beside the root, with ids of the sessions' own and with the machine's.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.people import Person, new_person
from tests.acceptance.sessions import mounted
from tests.homes import Home, open_home
from tests.isolation.attempts import REACHED
from tests.isolation.outside import ATTEMPTS, Facts, open_things, public_folder
from tests.isolation.walls import WALLS
from waypoint.linux.tasks import cgroups

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

ALL_S = 60.0  # for all attempts of one session, on a busy machine


class Seen(NamedTuple):
    """What came of each attempt in one session: `got`."""

    where: str
    is_root: bool
    has_host_ids: bool
    got: dict[str, str]


class Scene:
    """The sessions `main` and `other` of root and `own` of a user, and the things that they must not reach."""

    def __init__(self, home: Home, facts: Facts, folder: Path) -> None:
        self.home = home
        (session,) = (one for one in home.must("ps", "--json").json() if one["branch"] == "other")
        (group,) = (
            line.split(":")[2]
            for line in Path(f"/proc/{session['pid']}/cgroup").read_text().splitlines()
            if line.startswith("0:")
        )
        own: Facts = {
            "home": str(home.path),
            "control": f"{home.runtime}/api.sock",
            "session": f"{home.runtime}/sessions/{session['id']}",
            "cgroup": f"{cgroups.find_hierarchies().unified}{group}",
        }
        self.plan = folder / f"plan-{home.id}"
        attempts = {name: wall.attempt for name, wall in WALLS.items()}
        self.plan.write_text(json.dumps({"facts": facts | own, "attempts": attempts}))

    def outside(self) -> dict[str, str]:
        """What comes of the attempts outside of all sessions."""
        done = subprocess.run(
            [sys.executable, "-I", ATTEMPTS, "control", self.plan], capture_output=True, text=True, check=True
        )
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def inside(self, where: str, branch: str, verb: str = "exec") -> Seen:
        """What comes of them in a session, in a child of its shell (`exec`) or in a process that enters it (`run`)."""
        words = ["python3", "-I", str(self.plan.parent / ATTEMPTS.name), "try", str(self.plan)]
        done = self.home.must(verb, "-b", branch, "--", *words, timeout_s=ALL_S)
        (facts,) = (one for one in self.home.must("ps", "--json").json() if one["branch"] == branch)
        is_root = facts["user"] == "root"
        return Seen(f"{where}: {verb}", is_root, facts["ids"] == "host", json.loads(done.stdout))


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with new_person("walls", "/bin/bash") as made:
        yield made


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with public_folder("walls") as made:
        (made / ATTEMPTS.name).write_bytes(ATTEMPTS.read_bytes())
        yield made


@pytest.fixture(scope="module")
def facts(folder: Path) -> Iterator[Facts]:
    """With two local mounts besides the root."""
    with contextlib.ExitStack() as stack:
        for name in ("first", "second"):
            (folder / name).mkdir()
            stack.enter_context(mounted(folder / name, "-t", "tmpfs", "none"))
        yield stack.enter_context(open_things(folder)) | {"second": str(folder / "second")}


@pytest.fixture(scope="module", params=["shifted", "host"])
def scene(request: pytest.FixtureRequest, facts: Facts, folder: Path, person: Person) -> Iterator[Scene]:
    with open_home("walls", host_ids=request.param == "host") as home, contextlib.ExitStack() as stack:
        for branch, user in (("main", "root"), ("own", person.name), ("other", "root")):
            home.must("shell", branch, "-d", "--user", user)
        words = ("python3", "-I", str(folder / ATTEMPTS.name), "hold", str(facts["held"]))
        program = stack.enter_context(home.background("run", "-b", "other", "--", *words))
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        yield Scene(home, facts, folder)


@pytest.fixture(scope="module")
def outside(scene: Scene) -> dict[str, str]:
    """What comes of each attempt where it must succeed."""
    there = scene.inside("the other", "other", "run").got
    found = scene.outside()
    return {name: (there if wall.is_others else found)[name] for name, wall in WALLS.items()}


@pytest.fixture(scope="module")
def seen(scene: Scene) -> list[Seen]:
    found = []
    for branch in ("main", "own"):
        found += [scene.inside(f"{branch} after start", branch, verb) for verb in ("exec", "run")]
        scene.home.must("checkpoint", f"of-{branch}", "-b", branch)
        scene.home.must("fork", f"of-{branch}", f"{branch}-2")
        scene.home.must("restore", f"of-{branch}", "-b", branch)
        found += [scene.inside(f"{branch} in a fork", f"{branch}-2"), scene.inside(f"{branch} after restore", branch)]
    return found


def test_enough_is_tried(outside: dict[str, str]) -> None:
    assert list(outside.values()).count(REACHED) >= 60


@pytest.mark.parametrize("name", WALLS)
def test_it_is_not_reached_from_inside(outside: dict[str, str], seen: list[Seen], name: str) -> None:
    wall, got = WALLS[name], {one.where: one.got[name] for one in seen}
    assert REACHED not in got.values()
    if outside[name] != REACHED and wall.may_lack:
        pytest.skip(f"this machine has none, or its root may not: {outside[name]}")
    assert outside[name] == REACHED, "the row cannot fail"
    assert got == {one.where: wall.expected(is_root=one.is_root, has_host_ids=one.has_host_ids) for one in seen}
