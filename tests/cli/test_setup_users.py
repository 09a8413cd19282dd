"""What an ordinary user is told who asks for what root does with a home; it is done as it is printed."""

import json
import os
import pwd
import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import daemon_pid
from tests.cli.test_next_steps import follow, make_programs, next_of
from tests.cli.test_setup import SCRIPTS, as_nobody, config, written
from tests.cli.test_setup import bare as bare
from tests.homes import Home, set_up
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.privileged, pytest.mark.requires("public-checkout")]


def test_an_ordinary_user_is_told_to_use_sudo(bare: Home) -> None:
    done = as_nobody(bare, "setup")
    assert done.returncode == 3
    assert next_of(done.stderr) == f"sudo waypoint --home {bare.path} setup"
    assert not bare.path.exists()
    make_programs(bare)
    assert follow(bare, next_of(done.stderr)).code == 0
    assert config(bare)["home_id"] == bare.id


def test_an_ordinary_user_is_told_how_a_stopped_daemon_is_started(bare: Home) -> None:
    set_up(bare, "--user", "nobody")
    bare.must("daemon", "stop")
    done = as_nobody(bare, "ps")
    assert done.returncode == 3
    assert "only root can start it" in done.stderr
    printed = next_of(done.stderr)
    assert printed.startswith(f"sudo waypoint --home {bare.path} ps")
    make_programs(bare)
    assert follow(bare, printed.partition(" (")[0]).code == 0
    assert as_nobody(bare, "ps").returncode == 0


def test_a_user_who_may_use_the_home_gets_completion_of_their_own(bare: Home) -> None:
    set_up(bare, "--user", "nobody")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
        env = {**bare.env, "XDG_DATA_HOME": folder}
        done = as_nobody(bare, "setup", env=env)
        assert done.returncode == 0, done.stderr
        own = {script.removeprefix("usr/local/share/") for script in SCRIPTS}
        assert set(written(Path(folder))) == own
        assert f"fpath+=({folder}/zsh/site-functions)" in done.stderr
        checked = as_nobody(bare, "setup", "--check", "--json", env=env)
        facts = {"home": str(bare.path), "user": "nobody", "trusted": False, "daemon": daemon_pid(bare)}
        assert (checked.returncode, json.loads(checked.stdout) | facts) == (0, json.loads(checked.stdout))
        assert "you cannot: have sessions of others" in checked.stderr
        assert checked.stderr.endswith(f"\nfor that: sudo waypoint --home {bare.path} setup --check\n"), checked.stderr
        removed = as_nobody(bare, "setup", "--remove", env=env)
        assert removed.returncode == 3
        printed = next_of(removed.stderr)
        assert printed == f"sudo waypoint --home {bare.path} setup --remove"
        assert written(Path(folder)) == {}
        assert bare.path.exists()
        make_programs(bare)
        assert follow(bare, printed).code == 0
        assert not bare.path.exists()


def test_who_is_let_in_is_let_in_at_once_and_cuts_nothing(bare: Home) -> None:
    set_up(bare)
    bare.must("shell", "main", "-d")
    daemon = bare.must("daemon", "status", "--json").json()["pid"]
    with bare.background("run", "--", "sh", "-c", "echo begun; exec sleep 1000") as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"begun\n"
        assert as_nobody(bare, "ps").returncode == 3
        for words in (("--user", "nobody"), ("--group", "nogroup")):
            done = bare.must("setup", *words)
            assert "anew" not in done.stderr
            assert as_nobody(bare, "ps").returncode == 0
        assert command.poll() is None
        assert bare.must("daemon", "status", "--json").json()["pid"] == daemon
        rows = bare.must("doctor", "--json").json()
        assert next(row["why"] for row in rows if row["capability"] == "other users").startswith("nobody and group nog")
        said = bare.must("setup", "--user", "daemon").stderr
        assert (
            "the daemon starts anew, for that to hold: commands and terminals from outside end, sessions go on" in said
        )
        assert command.wait(PATIENCE_S) == 125
    assert bare.must("exec", "--", "echo on").stdout == "on\n"


REFUSED = "cannot start a session as user root: you are nobody"


def users_row(home: Home) -> str:
    rows = home.must("doctor", "--json").json()
    return str(next(row["why"] for row in rows if row["capability"] == "other users"))


def test_a_setup_that_fails_gives_nobody_rights_and_the_next_one_does(bare: Home) -> None:
    set_up(bare, "--user", "nobody")
    before = config(bare)
    full = ("setup", "--user", "nobody", "--trust", "full")
    assert bare.cli(*full, env={"WAYPOINT_CRIU": "/bin/false"}).code == 3
    assert config(bare) == before
    assert users_row(bare) == "nobody: their own things only"
    bare.must(*full)
    assert users_row(bare).startswith("nobody is trusted fully")


@pytest.mark.parametrize("user", ["nobody", "daemon"])
def test_trust_is_taken_away_also_while_no_criu_works(bare: Home, user: str) -> None:
    set_up(bare, "--user", "nobody", "--trust", "full")
    done = bare.cli("setup", "--user", user, env={"WAYPOINT_CRIU": "/bin/false"})
    assert (done.code, "user nobody is not trusted fully any more" in done.stderr) == (3, True), done
    assert users_row(bare) == "nobody: their own things only"
    done = as_nobody(bare, "shell", "evil", "--user", "root", "-d")
    assert (done.returncode, REFUSED in done.stderr) == (3, True), done


@pytest.mark.parametrize(
    "change", [{"trusted_uid": None}, {"owner_uid": 1, "trusted_uid": None}], ids=["trust", "user"]
)
def test_what_a_killed_setup_wrote_down_is_not_said_to_hold_until_it_does(
    bare: Home, change: dict[str, object]
) -> None:
    set_up(bare, "--user", "nobody", "--trust", "full")
    pid = daemon_pid(bare)
    (bare.path / "config.json").write_text(json.dumps({**config(bare), **change}))  # and is killed
    assert users_row(bare).startswith("nobody is trusted fully")
    _, _, said = bare.must("setup", "--check").stderr.partition("that holds from the daemon's next start: '")
    printed = said.partition("' starts it anew\n")[0]
    make_programs(bare)
    assert follow(bare, printed).code == 0
    assert daemon_pid(bare) != pid
    assert "their own things only" in users_row(bare)
    done = as_nobody(bare, "shell", "evil", "--user", "root", "-d")
    assert done.returncode == 3
    pid = daemon_pid(bare)
    assert "next start" not in bare.must("setup", "--check").stderr
    assert "anew" not in bare.must("setup").stderr
    assert daemon_pid(bare) == pid


def test_trust_ends_also_where_the_rest_of_the_setup_fails(bare: Home) -> None:
    set_up(bare, "--user", "nobody", "--trust", "full")
    (bare.path.parent / "file").touch()
    done = bare.cli("setup", "--user", "nobody", env={"WAYPOINT_SETUP_ROOT": f"{bare.path.parent}/file"})
    assert (done.code, "Not a directory" in done.stderr) == (125, True), done
    assert users_row(bare) == "nobody: their own things only"
