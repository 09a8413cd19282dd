"""Usual programs and tasks work in a session: the rows of works.py.

Their scripts run as root and as an ordinary user, in a new session, in a restored one and in a fork. No script needs
network access: packages come from a registry that runs in the session. Real packages of the distribution are downloaded
before, in a session with the machine's network.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import needs
from tests.acceptance.people import Person, new_person
from tests.acceptance.sessions import inside
from tests.homes import Completed, Home, open_home
from tests.isolation.outside import public_folder
from tests.isolation.supplies import PORT, fetch_real, install_real, make_registry
from tests.isolation.works import PRELUDE, WORKS, Work

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

LONGEST = "40"
"""Seconds for one script on a busy machine; some start a database or install packages."""


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with new_person("works", "/bin/bash") as made:
        yield made


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with public_folder("works") as made:
        (made / "registry").mkdir()
        make_registry(made / "registry")
        for name, work in WORKS.items():
            script_of(made, name).write_text(PRELUDE + work.script)
        yield made


@contextlib.contextmanager
def open_place(folder: Path, person: Person, real: Path | None) -> Iterator[Home]:
    """Yield a home with the restored sessions `root` and `user`, their forks `root-2` and `user-2`, and a new `root-3`.

    `real`: an empty folder into which to download packages of the distribution to install; None: install none.
    """
    with open_home("works") as home:
        if real:
            fetch_real(home, real)
        for branch, user in (("root", "root"), ("user", person.name)):
            home.must("shell", branch, "-d", "--user", user)
            inside(home, branch, f"python3 -m http.server {PORT} -b 127.0.0.1 -d {folder}/registry >/dev/null 2>&1 &")
        if real:
            install_real(home, "root", real)
        for branch in ("root", "user"):
            home.must("checkpoint", f"of-{branch}", "-b", branch)
            home.must("fork", f"of-{branch}", f"{branch}-2")
            home.must("restore", f"of-{branch}", "-b", branch)
        home.must("shell", "root-3", "-d", "--from", "of-root")
        inside(home, "root-3", f"python3 -m http.server {PORT} -b 127.0.0.1 -d {folder}/registry >/dev/null 2>&1 &")
        yield home


@pytest.fixture(scope="module")
def place(folder: Path, person: Person) -> Iterator[Home]:
    with open_place(folder, person, None) as home:
        yield home


@pytest.fixture(scope="module")
def supplied(folder: Path, person: Person) -> Iterator[Home]:
    """The sessions of `open_place`, with packages of the distribution."""
    (folder / "real").mkdir()
    with open_place(folder, person, folder / "real") as home:
        yield home


def script_of(folder: Path, name: str) -> Path:
    return folder / f"{list(WORKS).index(name)}.sh"


def test_this_machine_can_run_at_least_40_scripts() -> None:
    tried = [name for name, work in WORKS.items() if not any(map(needs.missing, work.needs))]
    assert len(tried) >= 40


def marks_of(work: Work) -> list[pytest.MarkDecorator]:
    needs_registry = [pytest.mark.soak(part="setup")] if work.is_long or "network" in work.needs else []
    return [pytest.mark.requires(*work.needs), *needs_registry]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(work)) for name, work in WORKS.items()])
def test_a_script_succeeds_in_every_session(request: pytest.FixtureRequest, folder: Path, name: str) -> None:
    work = WORKS[name]
    place: Home = request.getfixturevalue("supplied" if "network" in work.needs else "place")
    branches = ["root-2"] if work.is_long else ["root", "root-2", "root-3"]
    if work.is_users:
        branches += ["user"] if work.is_long else ["user", "user-2"]

    def attempt(branch: str) -> Completed:
        return place.cli("exec", "-b", branch, "--timeout", LONGEST, "--", f"bash {script_of(folder, name)}")

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(branches, pool.map(attempt, branches), strict=True))
    assert {branch: done.stdout for branch, done in found.items() if done.code != 0} == {}
