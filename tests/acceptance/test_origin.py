"""The user, the start folder, the origin (`--from`) and the environment of a new session."""

import subprocess

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, refused, session
from tests.collecting import collecting
from tests.homes import Home
from tests.waiting import wait_until

pytestmark = pytest.mark.privileged


def test_a_user_may_be_named_or_numbered(home: Home, person: Person) -> None:
    for who, expected in [
        (person.name, f"{person.name} {person.uid} {person.gid} {person.home} {person.name}"),
        (str(person.uid), f"{person.name} {person.uid} {person.gid} {person.home} {person.name}"),
        ("root", "root 0 0 /root root"),
        ("0", "root 0 0 /root root"),
        ("54321", "54321 54321 54321 / 54321"),
    ]:
        with session(home, who) as branch:
            assert inside(home, branch, "echo $LOGNAME $(id -u) $(id -g) $HOME $USER") == f"{expected}\n"


def test_an_unknown_user_is_refused(home: Home) -> None:
    with collecting() as row:
        for who in ("no-such-user", "-1", "root:root", "4294967295", "99999999999", " ", "ro ot"):
            with row(who):
                assert repr(who) in refused(home, f"--user={who}")


def test_the_default_user_is_the_caller_even_under_sudo(home: Home, person: Person) -> None:
    sudo = {"SUDO_UID": str(person.uid), "SUDO_USER": person.name}
    home.must("shell", "mine", "-d", env=sudo)
    assert inside(home, "mine", "id -un") == f"{person.name}\n"
    home.must("shell", "roots", "-d", "--user", "root", env=sudo)
    assert inside(home, "roots", "id -un") == "root\n"
    home.must("stop", "mine", "roots", "--discard")


def test_a_session_starts_in_the_given_folder(home: Home, person: Person) -> None:
    with session(home, person.name, "--cwd", "/usr/lib") as branch:
        assert inside(home, branch, "pwd") == "/usr/lib\n"
    for where in ("/no/such/folder", "/root", "/etc/passwd"):
        said = refused(home, "--user", person.name, "--cwd", where)
        assert said.startswith(f"waypoint: cannot start a session in {where}: ")


def test_a_branch_may_start_from_another(home: Home, person: Person) -> None:
    with session(home, person.name) as first:
        inside(home, first, "echo one >~/state; mkdir ~/folder")
        [stopped] = home.must("stop", "--files", first, "--json").json()
        with (
            session(home, person.name, "--from", first) as second,
            session(home, person.name, "--from", first) as third,
        ):
            assert (
                inside(home, second, "cat ~/state; cd ~/folder && pwd; echo two >~/state")
                == f"one\n{person.home}/folder\n"
            )
            assert inside(home, third, "cat ~/state; rm ~/state") == "one\n"
            assert inside(home, second, "cat ~/state") == "two\n"
            home.must("shell", first, "-d")
            assert inside(home, first, "cat ~/state; id -un") == f"one\n{person.name}\n"
        with session(home, person.name, "--from", stopped["capture"][:8]) as fourth:
            assert inside(home, fourth, "cat ~/state") == "one\n"


def test_an_impossible_origin_is_refused(home: Home, branch: str) -> None:
    assert "no-such-origin" in refused(home, "--from", "no-such-origin")
    assert "it has a running session" in refused(home, "--from", branch, code=4)
    assert refused(home, "--from", "bad name")
    done = home.cli("shell", branch, "-d", "--from", branch)
    assert done.code == 4
    home.must("stop", "--files", branch)
    with session(home, "root", "--from", branch) as other:
        home.must("stop", "--files", other)
        done = home.cli("shell", other, "-d", "--from", branch)
        assert done.code == 4
        assert "exists" in done.stderr


def test_only_terminal_and_locale_of_the_callers_environment_are_passed_on(home: Home, person: Person) -> None:
    secret = {
        "API_KEY": "hunter2",
        "LD_PRELOAD": "",
        "PYTHONPATH": "/x",
        "PS1": "x",
        "BASH_ENV": "/x",
        "WAYPOINT_X": "hunter2",
    }
    taken = {"TERM": "xterm-kitty", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "LC_TIME": "C", "TZ": "Asia/Tokyo"}
    home.must("shell", "env", "-d", "--user", person.name, env=secret | taken)
    found = dict(line.split("=", 1) for line in inside(home, "env", "env").splitlines() if "=" in line)
    assert {name: found.get(name) for name in taken} == taken
    assert not set(secret) & set(found)
    everything = home.must("exec", "-b", "env", "--", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'").stdout
    assert "hunter2" not in everything
    assert "hunter2" not in home.must("run", "-b", "env", "env", env=secret).stdout
    assert found["PATH"].split(":")[-2:] == ["/bin", "/.waypoint/asking"]
    assert str(home.path) not in everything
    home.must("stop", "env", "--discard")


def test_a_session_gets_a_default_terminal_type(home: Home, person: Person) -> None:
    subprocess.run(
        home.argv("shell", "plain", "-d", "--user", person.name),
        env={name: value for name, value in home.env.items() if name not in ("TERM", "LANG")},
        check=True,
        capture_output=True,
    )
    assert inside(home, "plain", "echo $TERM.$LANG.; tput cols >/dev/null && echo works").endswith("works\n")
    home.must("stop", "plain", "--discard")


def test_a_command_that_ends_at_once_has_run(home: Home) -> None:
    for number in range(5):
        home.must("shell", f"quick{number}", "-d", "--", "sh", "-c", f"echo {number} >/opt/quick; exit 3")
    names = [f"quick{number}" for number in range(5)]

    def ended() -> list[str]:
        return [one["branch"] for one in home.must("ps", "--all", "--json").json() if one["state"] == "ended"]

    wait_until(lambda: set(names) <= set(ended()), "all five sessions have ended")
    for number, name in enumerate(names):
        home.must("shell", name, "-d")
        assert inside(home, name, "cat /opt/quick") == f"{number}\n"
    home.must("stop", *names, "--discard")
