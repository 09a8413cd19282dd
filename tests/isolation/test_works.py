"""What people do on a machine works in a session: the rows of works.py.

They are tried by root and by an ordinary user, in a session that has just begun, in one that was restored and in a
fork. None of these has a way out: packages come from a registry that runs in the session. Real ones of the distribution
were fetched with the machine's network before.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import needs
from tests.acceptance.people import Person, new_person
from tests.acceptance.sessions import inside
from tests.homes import Home, open_home
from tests.isolation.outside import public_folder
from tests.isolation.supplies import PORT, fetch_real, install_real, make_registry
from tests.isolation.works import PRELUDE, WORKS, Work

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

LONGEST_S, ALL_S = 40, 200
"""For one row, and for all of a session, on a busy machine: some start a database or install packages."""
_ENDED = re.compile(r"^row (\d+) ended with (\d+)\n", re.MULTILINE)

Outcomes = dict[str, dict[str, tuple[int, str]]]
"""By session and row: the exit status, and what was printed."""


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


@pytest.fixture(scope="module")
def place(folder: Path, person: Person) -> Iterator[Home]:
    """Sessions `root` and `user`, which were restored, their forks `root-2` and `user-2`, and `root-3`, just begun."""
    with open_home("works") as home:
        if not needs.missing("network"):
            (folder / "real").mkdir()
            fetch_real(home, folder / "real")
        for branch, user in (("root", "root"), ("user", person.name)):
            home.must("shell", branch, "-d", "--user", user)
            inside(home, branch, f"python3 -m http.server {PORT} -b 127.0.0.1 -d {folder}/registry >/dev/null 2>&1 &")
        if not needs.missing("network"):
            install_real(home, "root", folder / "real")
        for branch in ("root", "user"):
            home.must("checkpoint", f"of-{branch}", "-b", branch)
            home.must("fork", f"of-{branch}", f"{branch}-2")
            home.must("restore", f"of-{branch}", "-b", branch)
        home.must("shell", "root-3", "-d", "--from", "of-root")
        inside(home, "root-3", f"python3 -m http.server {PORT} -b 127.0.0.1 -d {folder}/registry >/dev/null 2>&1 &")
        yield home


def script_of(folder: Path, name: str) -> Path:
    return folder / f"{list(WORKS).index(name)}.sh"


def test_enough_is_tried(place: Home) -> None:
    assert len(place.must("ps", "--json").json()) == 5
    tried = [name for name, work in WORKS.items() if not any(map(needs.missing, work.needs))]
    assert len(tried) >= 40


def branches_of(work: Work) -> list[str]:
    """The sessions that try it."""
    if work.is_long:
        return ["user" if work.is_users else "root-2"]
    return ["root", "root-2", "root-3", *(["user", "user-2"] if work.is_users else [])]


def attempt(place: Home, folder: Path, branch: str, names: list[str]) -> dict[str, tuple[int, str]]:
    """Try rows in a session, one after the other, in one command: what came of each that has ended."""
    script = folder / f"of-{branch}.sh"
    with script.open("w") as file:
        for number, name in enumerate(names):
            file.write(f"timeout --foreground -k 2 {LONGEST_S} bash {script_of(folder, name)}\n")
            file.write(f'code=$?; printf "\\nrow {number} ended with $code\\n"\n')
    done = place.cli("exec", "-b", branch, "--timeout", str(ALL_S), "--", f"bash {script}", timeout_s=ALL_S + 20)
    printed, *ended = _ENDED.split(done.stdout)
    found = {}
    for number, code, rest in zip(ended[::3], ended[1::3], ended[2::3], strict=True):
        found[names[int(number)]] = int(code), printed
        printed = rest
    return found


@pytest.fixture(scope="module")
def outcomes(place: Home, folder: Path, request: pytest.FixtureRequest) -> Outcomes:
    """Of the rows that this run asks for, all of which are tried before the first is judged."""
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    rows = {name: work for name, work in WORKS.items() if name in asked and not any(map(needs.missing, work.needs))}
    branches = sorted({branch for work in rows.values() for branch in branches_of(work)})

    def attempt_all(branch: str) -> dict[str, tuple[int, str]]:
        return attempt(place, folder, branch, [name for name, work in rows.items() if branch in branches_of(work)])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(branches, pool.map(attempt_all, branches), strict=True))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.requires(*work.needs)) for name, work in WORKS.items()]
)
def test_it_works_inside(outcomes: Outcomes, name: str) -> None:
    found = {branch: outcomes[branch].get(name, (-1, "not tried to its end")) for branch in branches_of(WORKS[name])}
    assert {branch: said for branch, (code, said) in found.items() if code != 0} == {}
