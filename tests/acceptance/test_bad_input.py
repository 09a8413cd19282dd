"""What a user may get wrong: each is a clear error with the right exit code, and harms nothing."""

import json
import socket
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.homes import Completed, Home
from waypoint.model.paths import socket_path

pytestmark = pytest.mark.privileged

# tests/model/test_names.py has what a name may be. Here are those that a command or a folder could take amiss.
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
    """Four parts: what was tried and on what, the reason, the next step; and nothing that a terminal would act on."""
    is_clean = not any(bad in text for bad in ("\x1b", "Traceback"))
    return text.startswith("waypoint: cannot ") and "\n  next: " in text and is_clean


def known(home: Home) -> set[str]:
    return {one["branch"] for one in home.must("ps", "--all", "--json").json()}


def operations(home: Home) -> Counter[str]:
    """How many there were of each verb."""
    return Counter(one["verb"] for one in home.must("op", "log", "-n", "1000", "--json").json())


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_name_serves(home: Home, person: Person, name: str) -> None:
    home.must("shell", "-d", name, "--user", person.name)
    assert inside(home, name, "echo $WAYPOINT_BRANCH") == f"{name}\n"
    home.must("stop", name)
    home.must("shell", "-d", name)
    home.must("stop", name, "--discard")
    assert name in known(home)  # its older files


@pytest.mark.parametrize("name", ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_name_is_refused_before_anything_happens(home: Home, name: str) -> None:
    before = known(home)
    for command in BY_ARGUMENT:
        done = say(home, command, name)
        assert (done.code, done.stdout) == (2, ""), command
        assert is_message(done.stderr), done.stderr
    for command in BRANCH_LAST:
        done = say(home, command, name)
        assert (done.code, done.stdout) == (2, ""), command
        assert is_message(done.stderr), done.stderr
    assert home.cli("shell", "-d", "fine", "--from", name).code == 2
    assert known(home) == before


def test_a_name_excludes_those_below_it(home: Home) -> None:
    with session(home, "root") as name:
        done = home.cli("shell", "-d", f"{name}/below")
        assert done.code == 4
        assert is_message(done.stderr)
        assert name in done.stderr
        assert inside(home, name, "echo lives") == "lives\n"


@pytest.mark.parametrize(("command", "code"), UNKNOWN.items())
def test_an_unknown_branch_is_told(home: Home, command: str, code: int) -> None:
    done = say(home, command, "no-such-branch")
    assert (done.code, done.stdout) == (code, "")
    assert is_message(done.stderr)
    assert "no-such-branch" in done.stderr


def test_a_session_that_has_ended_is_told_and_can_go_on(home: Home, branch: str) -> None:
    inside(home, branch, "echo kept >~/kept")
    assert home.cli("exec", "-b", branch, "--", "exit 3").code == 3
    for command, code in ENDED.items():
        done = say(home, command, branch)
        assert (done.code, done.stdout) == (code, ""), command
        assert is_message(done.stderr), done.stderr
        assert branch in done.stderr
    home.must("shell", "-d", branch)
    assert inside(home, branch, "cat ~/kept") == "kept\n"


def test_commands_at_once_take_turns_and_each_gets_its_own_output(home: Home, branch: str) -> None:
    inside(home, branch, "count=0")

    def one(number: int) -> Completed:
        return home.cli("exec", "-b", branch, "--", f"count=$((count+1)); yes {number} | head -n 2000")

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(16)))
    for number, done in enumerate(found):
        assert (done.code, done.stdout) == (0, f"{number}\n" * 2000)
    assert inside(home, branch, "echo $count") == "16\n"


def test_starts_at_once_make_one_session(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: home.cli("shell", "-d", "--json", "at-once"), range(8)))
    assert [done.code for done in found] == [0] * 8
    assert len({json.loads(done.stdout)["id"] for done in found}) == 1
    home.must("stop", "at-once", "--discard")


def test_stops_at_once_and_a_stop_beside_a_start_leave_a_branch_that_works(home: Home, branch: str) -> None:
    """Their order decides what a stop meets: it ends the session, as the record says, or there is none."""
    inside(home, branch, "echo kept >~/kept")
    before = operations(home)
    with ThreadPoolExecutor(8) as pool:
        stops = [pool.submit(home.cli, "stop", branch) for _ in range(4)]
        starts = [pool.submit(home.cli, "shell", "-d", branch) for _ in range(4)]
        assert [job.result().code for job in starts] == [0] * 4
        refused = [job.result() for job in stops if job.result().code != 0]
    for done in refused:
        assert (done.code, is_message(done.stderr)) == (4, True), done
        assert f"cannot reach branch {branch}: it has no live session\n" in done.stderr
    assert (operations(home) - before)["end"] == 4 - len(refused) > 0
    home.must("shell", "-d", branch)
    assert inside(home, branch, "cat ~/kept") == "kept\n"


@pytest.mark.parametrize(
    "args",
    [
        ["exec"],
        ["exec", "--timeout", "soon", "--", "true"],
        ["exec", "--nosuch", "--", "true"],
        ["run"],
        ["shell", "-d", "a", "b"],
        ["shell", "-d", "a", "-b", "b"],
        ["shell", "--json"],
        ["stop", "--all", "a"],
        ["logs", "a", "b"],
        ["ps", "a"],
        ["nosuch"],
        [],
    ],
)
def test_wrong_usage_is_told_with_status_2(home: Home, args: list[str]) -> None:
    before = known(home)
    done = home.cli(*args)
    said = done.json()["error"]["exit"] if "--json" in args else done.stdout
    assert (done.code, said) == (2, 2 if "--json" in args else "")
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert known(home) == before


@pytest.mark.parametrize("folder", ["/" + "a" * 100_000, "/no|such"])
def test_a_folder_that_cannot_be_is_told(home: Home, branch: str, folder: str) -> None:
    done = home.cli("shell", "-d", "elsewhere", "--cwd", folder)
    assert (done.code, is_message(done.stderr), "bug" in done.stderr) == (2, True, False), done.stderr[-400:]
    done = home.cli("run", "-b", branch, "--cwd", folder, "--", "true")
    assert (done.code, "bug" in done.stderr) == (125, False), done.stderr[-400:]
    assert "elsewhere" not in known(home)


def test_what_is_no_home_is_told(home: Home, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("other")
    (folder / "precious").write_text("kept")
    for where in (folder, folder / "precious", folder / "nothing"):
        done = subprocess.run(
            [*home.argv("ps"), "--home", str(where)], env=home.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 3, done
        assert is_message(done.stderr), done.stderr
    assert [path.name for path in folder.iterdir()] == ["precious"]


def test_a_daemon_that_is_asked_nonsense_goes_on(home: Home, branch: str) -> None:
    """Whatever comes over the socket, the session is still there afterwards (more in tests/daemon/test_hostile.py)."""
    headers = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000
    for rubbish in (b"\x00" * 5000, headers, b"\xff\xfe\r\n\r\n", b"POST /v1/sessions"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(socket_path(str(home.path)))
            try:
                client.sendall(rubbish)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            except OSError:
                continue  # cut off
    assert inside(home, branch, "echo lives") == "lives\n"
