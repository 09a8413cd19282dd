"""Nothing of the machine and of other sessions is reached from inside of a session: the rows of walls.py.

They are tried in sessions of root and of an ordinary user, after a start, in a fork and after a restore, with two local
mounts beside the root, with ids of the sessions' own and with the machine's. And the walls behind the first: on the
machine's network, in namespaces that a session makes itself because it is allowed to, and without the filter of system
calls.
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


NESTING = ("unshare", "-Urm")
"""In namespaces of its own, in which a caller has all capabilities."""


class Seen(NamedTuple):
    """What came of each attempt in one session: `got`. `nested`: made behind NESTING."""

    where: str
    is_root: bool
    has_host_ids: bool
    on_network: bool
    filtered: bool
    nested: bool
    got: dict[str, str]

    def is_as_expected(self, name: str) -> bool:
        wall, got = WALLS[name], self.got[name]
        if self.nested:  # which wall refuses it there depends on the kernel
            may_reach = wall.nested or (wall.of_network and self.on_network) or (wall.by_filter and not self.filtered)
            return may_reach or (got != REACHED and not got.startswith("broken"))
        return got == wall.expected(
            is_root=self.is_root, has_host_ids=self.has_host_ids, on_network=self.on_network, filtered=self.filtered
        )


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

    def inside(self, where: str, branch: str, verb: str = "exec", nesting: tuple[str, ...] = ()) -> Seen:
        """What comes of them in a session, in a child of its shell (`exec`) or in a process that enters it (`run`)."""
        words = [*nesting, "python3", "-I", str(self.plan.parent / ATTEMPTS.name), "try", str(self.plan)]
        done = self.home.must(verb, "-b", branch, "--", *words, timeout_s=ALL_S)
        (facts,) = (one for one in self.home.must("ps", "--json").json() if one["branch"] == branch)
        return Seen(
            f"{where}: {verb}",
            is_root=facts["user"] == "root",
            has_host_ids=facts["ids"] == "host",
            on_network=facts["net"] == "host",
            filtered=facts["seccomp"] != "none",
            nested=bool(nesting),
            got=json.loads(done.stdout),
        )


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


@pytest.fixture(
    scope="module",
    params=["shifted", pytest.param("host", marks=pytest.mark.soak(part="matrix")), "host, without a filter"],
)
def scene(request: pytest.FixtureRequest, facts: Facts, folder: Path, person: Person) -> Iterator[Scene]:
    host_ids, seccomp = request.param != "shifted", "filter" not in request.param
    with open_home("walls", host_ids=host_ids, seccomp=seccomp) as home, contextlib.ExitStack() as stack:
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
def seen(scene: Scene, person: Person) -> list[Seen]:
    found = []
    for branch, user in (("open", "root"), ("open-own", person.name)):
        scene.home.must("shell", branch, "-d", "--user", user, "--allow", "userns", "--net", "host")
        found += [scene.inside(branch, branch), scene.inside(f"{branch}, nested", branch, nesting=NESTING)]
    if not found[0].filtered:
        return [*found, *(scene.inside(branch, branch) for branch in ("main", "own"))]
    for branch in ("main", "own"):
        found += [scene.inside(f"{branch} after start", branch, verb) for verb in ("exec", "run")]
        scene.home.must("checkpoint", f"of-{branch}", "-b", branch)
        scene.home.must("fork", f"of-{branch}", f"{branch}-2")
        scene.home.must("restore", f"of-{branch}", "-b", branch)
        found += [scene.inside(f"{branch} in a fork", f"{branch}-2"), scene.inside(f"{branch} after restore", branch)]
    return found


def test_enough_is_tried(outside: dict[str, str], seen: list[Seen]) -> None:
    can_be_reached = {name for name, got in outside.items() if got == REACHED}
    for one in seen:
        assert len([name for name in can_be_reached if one.got[name] != REACHED]) >= 60, one.where


def why_it_fails(name: str, outside: dict[str, str], seen: list[Seen]) -> str:
    """What is wrong with the row: it is reached, or refused in another way than it should be, or cannot fail; else "".

    A row that this machine may lack, and lacks, counts only if it is reached.
    """
    usual = [one for one in seen if one.filtered and not one.nested and not one.on_network]
    if reached := [one.where for one in usual if one.got[name] == REACHED]:
        return f"reached from {', '.join(reached)}"
    if outside[name] != REACHED:
        return "" if WALLS[name].may_lack else f"the row cannot fail, because outside it is {outside[name]}"
    odd = [f"{one.got[name]} in {one.where}" for one in seen if not one.is_as_expected(name)]
    return f"not as expected: {', '.join(odd)}" if odd else ""


def test_nothing_is_reached_from_inside(outside: dict[str, str], seen: list[Seen]) -> None:
    failed = [f"{name}: {why}" for name in WALLS if (why := why_it_fails(name, outside, seen))]
    assert not failed, "\n".join(failed)
