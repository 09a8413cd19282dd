"""From inside a session, nothing of the machine and of other sessions can be reached: the rows of walls.py.

The attempts run in sessions of root and of an ordinary user, after a start, in a fork and after a restore, with two
local mounts beside the root, with shifted user ids and with the host's. They also run in sessions that lack one of the
protections: on the machine's network, in a user namespace that the session may make, and without the filter of system
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

ALL_S = 60.0  # how long all attempts in one session may take on a busy machine


NESTING = ("unshare", "-Urm")
"""Runs a program in new user and mount namespaces, in which it has all capabilities."""


class Seen(NamedTuple):
    """The outcomes of all attempts in one session. `got`: by row. `nested`: the attempts ran under NESTING."""

    where: str
    is_root: bool
    has_host_ids: bool
    on_network: bool
    filtered: bool
    nested: bool
    got: dict[str, str]

    def is_as_expected(self, name: str) -> bool:
        wall, got = WALLS[name], self.got[name]
        if self.nested:  # there the errno depends on the kernel
            may_reach = wall.nested or (wall.of_network and self.on_network) or (wall.by_filter and not self.filtered)
            return may_reach or (got != REACHED and not got.startswith("broken"))
        return got == wall.expected(
            is_root=self.is_root, has_host_ids=self.has_host_ids, on_network=self.on_network, filtered=self.filtered
        )


class Scene:
    """A home with the sessions `main` and `other` of root and `own` of a user, and a file with the attempts."""

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
        """Return the outcomes of the attempts outside of all sessions."""
        done = subprocess.run(
            [sys.executable, "-I", ATTEMPTS, "control", self.plan], capture_output=True, text=True, check=True
        )
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def inside(self, where: str, branch: str, verb: str = "exec", nesting: tuple[str, ...] = ()) -> Seen:
        """Return the outcomes in a session, in a child of its shell (`exec`) or in a process that enters it (`run`)."""
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
    """The description of the things outside, while two local file systems are mounted besides the root."""
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
    """The outcome of each attempt at a place where it must succeed: outside, or in the session that has the thing."""
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


def test_at_least_60_attempts_succeed_outside_and_fail_inside(outside: dict[str, str], seen: list[Seen]) -> None:
    can_be_reached = {name for name, got in outside.items() if got == REACHED}
    for one in seen:
        assert len([name for name in can_be_reached if one.got[name] != REACHED]) >= 60, one.where


def why_it_fails(name: str, outside: dict[str, str], seen: list[Seen]) -> str:
    """Return why the row `name` fails; "" if it does not.

    It fails if a session reaches the thing, if the outcome in a session is not the expected one, or if the attempt
    fails outside, too, so that it proves nothing. The last does not count for a row with `may_lack`.
    """
    usual = [one for one in seen if one.filtered and not one.nested and not one.on_network]
    if reached := [one.where for one in usual if one.got[name] == REACHED]:
        return f"reached from {', '.join(reached)}"
    if outside[name] != REACHED:
        return "" if WALLS[name].may_lack else f"the row proves nothing: the outcome outside is {outside[name]}"
    odd = [f"{one.got[name]} in {one.where}" for one in seen if not one.is_as_expected(name)]
    return f"not as expected: {', '.join(odd)}" if odd else ""


def test_nothing_outside_is_reached_from_inside(outside: dict[str, str], seen: list[Seen]) -> None:
    failed = [f"{name}: {why}" for name in WALLS if (why := why_it_fails(name, outside, seen))]
    assert not failed, "\n".join(failed)
