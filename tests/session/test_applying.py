"""Applies that are interrupted, and those of ordinary users."""

import contextlib
import os
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.homes import Home, open_home
from tests.projects import CHANGE, beside, listed, listed_in
from tests.session.let_in import refused, succeeds
from tests.session.pauses import Pauses
from tests.session.transactions import APPLYING
from tests.upper.overlays import picture
from tests.waiting import wait_until
from waypoint.capture.steps import Step

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]

SEED = int(os.environ.get("WAYPOINT_TEST_SEED", "1"))


@pytest.mark.parametrize("step", APPLYING)
def test_a_killed_daemon_leaves_the_files_as_before_or_as_after(pauses: Pauses, project: Path, step: Step) -> None:
    before = picture(project, with_times=True)
    with pauses.open_home("apply") as home:
        home.must("shell", "main", "-d", env=pauses.env)
        home.must("exec", "--", CHANGE.format(project))
        wanted = listed_in(home, "main", project)
        with pauses.armed(step) as armed, home.background("apply", "main", "--", str(project)) as command:
            assert armed.wait() == step
            os.kill(home.must("daemon", "status", "--json").json()["pid"], 9)
            command.wait()
        home.must("ps")
        if step is Step.APPLIED:
            assert listed(project) == wanted
            home.must("undo", str(home.must("op", "log", "-n", "1", "--json").json()[0]["number"]))
        assert picture(project, with_times=True) == before
        assert beside(home) == []
        home.must("apply", "main", "--", str(project))
        assert listed(project) == wanted


@pytest.mark.soak(part="faults")
@pytest.mark.timeout(1200)
def test_each_of_200_kills_at_random_leaves_the_files_as_before_or_as_after(project: Path) -> None:
    choose = random.Random(SEED)
    for number in range(300):
        (project / f"many{number}").write_text(f"{number}\n")
    before = picture(project, with_times=True)
    with open_home("kills") as home:
        home.must("shell", "main", "-d")
        change = f"cd {project}; rm many1*; for f in many2*; do echo x >> $f; done; mkdir new; cp many2* new"
        home.must("exec", "--", change)
        wanted = listed_in(home, "main", project)
        outcomes = Counter[str]()
        for _ in range(200):
            daemon = home.must("daemon", "status", "--json").json()["pid"]
            with home.background("apply", "main", "--", str(project)) as command:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.wait(choose.uniform(0.05, 0.6))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon, 9)
                command.wait()
            last = home.must("op", "log", "-n", "1", "--json").json()[0]
            wait_until(lambda: not beside(home), "nothing waits beside the files")
            if last["verb"] == "apply":
                outcomes["after"] += 1
                assert listed(project) == wanted
                home.must("undo", str(last["number"]))
            else:
                outcomes["before"] += 1
            assert picture(project, with_times=True) == before
        assert min(outcomes.values()) >= 10, outcomes


def test_files_that_were_put_back_are_known_after_gc(home: Home, project: Path) -> None:
    home.must("shell", "main", "-d")
    home.must("exec", "--", f"cd {project}; echo x >> text; rm mode")
    home.must("apply", "main", "--", str(project))
    home.must("undo")
    home.must("gc", "--keep-operations", "0")
    journals = list((home.path / "applied").iterdir())
    assert [list((journal / "kept").glob("*")) for journal in journals] == [[], []]
    home.must("apply", "main", "--", str(project))
    assert (project / "text").read_text().endswith("x\n")
    home.must("stop", "main", "--discard")
    home.must("rm", "main")
    home.must("shell", "later", "-d")
    home.must("gc", "--keep-operations", "0")
    assert list((home.path / "applied").iterdir()) == [], "all sessions have begun after that"


def test_a_user_applies_with_own_rights_only(let_in: Home, person: Person) -> None:
    folder = person.home / "project"
    succeeds(person.can(let_in, "shell", "own", "-d", cwd="/"))
    made = f"mkdir {folder}; echo x > {folder}/file; ln -s file {folder}/l"
    succeeds(person.can(let_in, "exec", "-b", "own", "--", made))
    succeeds(person.can(let_in, "apply", "own", "--", str(folder)))
    assert (folder / "file").stat().st_uid == person.uid
    assert (folder / "l").readlink() == Path("file")
    succeeds(person.can(let_in, "exec", "-b", "own", "--", f"echo y > {folder}/file; rm {folder}/l"))
    subprocess.run(["chattr", "+i", folder / "file"], check=True)
    before = picture(person.home, with_times=True)
    refused(person.can(let_in, "apply", "own", "--theirs", "--", str(folder)), "nothing was changed")
    assert picture(person.home, with_times=True) == before
    subprocess.run(["chattr", "-i", folder / "file"], check=True)
    succeeds(person.can(let_in, "apply", "own", "--theirs", "--", str(folder)))
    assert (folder / "file").read_text() == "y\n"
    number = str(let_in.must("op", "log", "-n", "1", "--json").json()[0]["number"])
    succeeds(person.can(let_in, "undo"))
    assert (folder / "file").read_text() == "x\n"
    let_in.must("undo", str(int(number) + 1))
    assert (folder / "file").read_text() == "y\n"
    shared = person.home / "shared"  # like /tmp: another user's folder, whose times the user cannot set
    shared.mkdir()
    shared.chmod(0o1777)
    succeeds(person.can(let_in, "exec", "-b", "own", "--", f"echo z > {shared}/file"))
    succeeds(person.can(let_in, "apply", "own", "--", str(shared)))
    assert (shared / "file").read_text() == "z\n"
    let_in.must("shell", "roots", "-d", "--user", "root")
    refused(person.can(let_in, "apply", "roots"), "it belongs to root")
