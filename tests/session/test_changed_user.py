"""Root continues a branch that another user has left, and runs nothing that this user has put there.

A shell executes its restored state. So the state of a user must not reach a shell of root, least of all with the user's
folder of the host bound into the session. The state in these tests records in that folder which users have run it.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside
from tests.homes import Home
from tests.session.let_in import stop, succeeds
from tests.session.test_other_users import OF_WAYPOINT

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "public-checkout")]

TELL = "echo ran >>/mnt/by-$(id -u)"
LEFT = f"PROMPT_COMMAND='{TELL}'; nproc() {{ {TELL}; }}; trap '{TELL}' DEBUG; mark=left"


@pytest.fixture
def home(let_in: Home) -> Home:
    return let_in


@pytest.fixture
def left(home: Home, person: Person) -> Iterator[Path]:
    """The user's folder on the host. The ended session on `a` had it at /mnt; `a-cp` is a capture of this session."""
    folder = person.home / "x"
    folder.mkdir()
    os.chown(folder, person.uid, person.gid)
    folder.chmod(0o777)
    succeeds(person.can(home, "shell", "a", "-d", "--bind", f"{folder}:/mnt", cwd=str(person.home)))
    succeeds(person.can(home, "exec", "-b", "a", "--", LEFT))
    succeeds(person.can(home, "checkpoint", "a-cp", "-b", "a", "--tier", "files"))
    succeeds(person.can(home, "stop", "--files", "a"))
    assert ran_by(folder) == {person.uid}  # shows that the state is executed
    yield folder
    home.cli("branch", "delete", "a")
    home.must("rm", "a-cp")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def ran_by(folder: Path) -> set[int]:
    return {int(path.name.removeprefix("by-")) for path in folder.iterdir()}


@pytest.mark.parametrize("words", [("a", "--user", "root"), ("n", "--from", "a-cp", "--user", "root")])
def test_a_shell_of_root_gets_neither_state_nor_binds_of_a_user(
    home: Home, person: Person, left: Path, words: tuple[str, ...]
) -> None:
    done = home.must("shell", *words, "-d")
    try:
        changed = f"it belonged to {person.name}, and the session belongs to root"
        assert f"degraded: the shell's state was not restored: {changed}\n" in done.stderr
        assert f"degraded: {left} is not bound at /mnt: {changed}\n" in done.stderr
        assert inside(home, words[0], "id -u; nproc --help >/tmp/x; echo ${mark-none}; findmnt /mnt || echo none") == (
            "0\nnone\nnone\n"
        )
        assert ran_by(left) == {person.uid}
    finally:
        stop(home, words[0])


def test_a_session_as_the_user_gets_state_and_binds(home: Home, person: Person, left: Path) -> None:
    by = left / f"by-{person.uid}"
    before = by.stat().st_size
    done = home.must("shell", "n", "-d", "--from", "a-cp", "--user", person.name)
    assert "degraded" not in done.stderr
    assert inside(home, "n", "echo $mark; test -e /mnt/by-$(id -u) && echo there") == "left\nthere\n"
    assert by.stat().st_size > before
    assert ran_by(left) == {person.uid}
    stop(home, "n")


def test_binds_that_root_requests_are_made_in_place_of_those_of_a_user(home: Home, left: Path, tmp_path: Path) -> None:
    done = home.must("shell", "n", "-d", "--from", "a-cp", "--user", "root", "--bind", f"{tmp_path}:/mnt")
    assert f"{left} is not bound at /mnt" in done.stderr
    inside(home, "n", ": >/mnt/file")
    assert stat.S_ISREG((tmp_path / "file").stat().st_mode)
    stop(home, "n")


def test_the_state_of_a_user_is_not_restored_into_a_live_shell_of_root(home: Home, person: Person, left: Path) -> None:
    home.must("shell", "roots", "-d", "--user", "root")
    inside(home, "roots", "mark=own")
    done = home.cli("restore", "a-cp", "-b", "roots", "--only", "shell")
    said = f"cannot restore the shell on branch roots: it belonged to {person.name}, and the session belongs to root"
    assert (done.code, said in done.stderr) == (4, True), done
    assert inside(home, "roots", "echo $mark") == "own\n"
    assert ran_by(left) == {person.uid}
    assert "next: restore the whole capture: waypoint restore a-cp -b roots\n" in done.stderr
    restored = home.must("restore", "a-cp", "-b", "roots", "--lose-processes")
    assert "degraded: its shell" not in restored.stderr
    assert home.must("run", "-b", "roots", "--", "id", "-un").stdout == f"{person.name}\n"
    assert home.cli("exec", "-b", "roots", "--user", "root", "--", "true").code == OF_WAYPOINT
    assert ran_by(left) == {person.uid}
    stop(home, "roots")


def test_the_shell_chosen_by_a_user_is_not_the_shell_of_root(home: Home, person: Person) -> None:
    succeeds(person.can(home, "shell", "s", "-d", "--shell", "/bin/dash"))
    succeeds(person.can(home, "stop", "--files", "s"))
    assert home.must("shell", "s", "-d", "--user", "root", "--json").json()["shell"] != "/bin/dash"
    stop(home, "s")
