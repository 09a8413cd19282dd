"""Mistakes of users: each gives a clear error with the right exit code and does no harm."""

import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.collecting import collecting
from tests.homes import Completed, Home

pytestmark = pytest.mark.privileged

# The rules of names are tested in tests/model/test_names.py. These names could confuse a command or a file system.
LEGAL = ["x/y.z/1", "z" * 100]
ILLEGAL = {
    "empty": "",
    "the folder above": "a/../b",
    "escape": "a\x1b[31m",
    "not UTF-8": "a\udcff",
}
BRANCH_LAST = ["exec -b {} -- true", "run -b {} true"]
BY_ARGUMENT = ["shell -d {}", "logs {}", "stop {}"]
UNKNOWN = {"exec -b {} -- true": 125, "run -b {} true": 125, "logs {}": 2, "stop {}": 2}
ENDED = {**UNKNOWN, "logs {}": 4, "stop {}": 4}


def say(home: Home, command: str, name: str) -> Completed:
    return home.cli(*(word.format(name) for word in command.split(" ")))


def is_message(text: str) -> bool:
    """Whether it is a complete error message: the attempt, the reason and the next step, without escape sequences."""
    is_clean = not any(bad in text for bad in ("\x1b", "Traceback"))
    return text.startswith("waypoint: cannot ") and "\n  next: " in text and is_clean


def known(home: Home) -> set[str]:
    return {one["branch"] for one in home.must("ps", "--all", "--json").json()}


def operations(home: Home) -> Counter[str]:
    """Return the number of recorded operations of each verb."""
    return Counter(one["verb"] for one in home.must("op", "log", "-n", "1000", "--json").json())


def test_a_legal_name_works(home: Home, person: Person) -> None:
    for name in LEGAL:
        home.must("shell", "-d", name, "--user", person.name)
        assert inside(home, name, "echo $WAYPOINT_BRANCH") == f"{name}\n"
        home.must("stop", "--files", name)
        home.must("shell", "-d", name)
        home.must("stop", name, "--discard")
        assert name in known(home)  # only the second session was discarded; the files of the first are kept


def test_an_illegal_name_is_refused_before_anything_happens(home: Home) -> None:
    before = known(home)
    with collecting() as row:
        for kind, name in ILLEGAL.items():
            for command in (*BY_ARGUMENT, *BRANCH_LAST):
                with row(f"{kind}: {command}"):
                    done = say(home, command, name)
                    assert (done.code, done.stdout) == (2, "")
                    assert is_message(done.stderr), done.stderr
            with row(f"{kind}: shell --from"):
                assert home.cli("shell", "-d", "fine", "--from", name).code == 2
    assert known(home) == before


def test_a_name_below_an_existing_one_is_refused(home: Home) -> None:
    with session(home, "root") as name:
        done = home.cli("shell", "-d", f"{name}/below")
        assert done.code == 4
        assert is_message(done.stderr)
        assert name in done.stderr
        assert inside(home, name, "echo lives") == "lives\n"


def test_an_unknown_branch_is_an_error(home: Home) -> None:
    with collecting() as row:
        for command, code in UNKNOWN.items():
            with row(command):
                done = say(home, command, "no-such-branch")
                assert (done.code, done.stdout) == (code, "")
                assert is_message(done.stderr)
                assert "no-such-branch" in done.stderr


def test_commands_on_an_ended_session_fail_and_its_branch_can_be_started(home: Home, branch: str) -> None:
    inside(home, branch, "echo kept >~/kept")
    assert home.cli("exec", "-b", branch, "--", "exit 3").code == 3
    for command, code in ENDED.items():
        done = say(home, command, branch)
        assert (done.code, done.stdout) == (code, ""), command
        assert is_message(done.stderr), done.stderr
        assert branch in done.stderr
    home.must("shell", "-d", branch)
    assert inside(home, branch, "cat ~/kept") == "kept\n"


def test_concurrent_starts_make_one_session(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: home.cli("shell", "-d", "--json", "at-once"), range(8)))
    assert [done.code for done in found] == [0] * 8
    assert len({json.loads(done.stdout)["id"] for done in found}) == 1
    home.must("stop", "at-once", "--discard")


def test_concurrent_stops_and_starts_leave_a_branch_that_works(home: Home, branch: str) -> None:
    """Each `stop` either ends the session (and records that) or fails because no session is live."""
    inside(home, branch, "echo kept >~/kept")
    before = operations(home)
    with ThreadPoolExecutor(8) as pool:
        stops = [pool.submit(home.cli, "stop", branch) for _ in range(4)]
        starts = [pool.submit(home.cli, "shell", "-d", branch) for _ in range(4)]
        assert [job.result().code for job in starts] == [0] * 4
        refused = [job.result() for job in stops if job.result().code != 0]
    for done in refused:
        assert (done.code, is_message(done.stderr)) == (4, True), done
        assert f"cannot reach branch {branch}: it has no running session\n" in done.stderr
    assert (operations(home) - before)["end"] == 4 - len(refused) > 0
    home.must("shell", "-d", branch)
    assert inside(home, branch, "cat ~/kept") == "kept\n"


def test_wrong_usage_gives_status_2(home: Home) -> None:
    before = known(home)
    with collecting() as row:
        for command in (
            *("exec", "exec --timeout soon -- true", "exec --nosuch -- true", "run", "shell -d a b", "shell -d a -b b"),
            *("shell --json", "stop --all a", "logs a b", "ps a", "nosuch", ""),
        ):
            with row(command):
                done = home.cli(*command.split())
                said = done.json()["error"]["exit"] if "--json" in command else done.stdout
                assert (done.code, said) == (2, 2 if "--json" in command else "")
                assert done.stderr
                assert "Traceback" not in done.stderr
    assert known(home) == before


def test_a_folder_that_is_not_a_home_is_an_error(home: Home, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("other")
    (folder / "precious").write_text("kept")
    for where in (folder, folder / "precious", folder / "nothing"):
        done = subprocess.run(
            [*home.argv("ps"), "--home", str(where)], env=home.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 3, done
        assert is_message(done.stderr), done.stderr
    assert [path.name for path in folder.iterdir()] == ["precious"]
