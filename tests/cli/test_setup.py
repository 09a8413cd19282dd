"""`waypoint setup`: what it makes, for whom, and that nothing is left of it."""

import grp
import json
import os
import pwd
import select
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import OPEN, Home
from tests.places import ROOT, make_temp_root

pytestmark = pytest.mark.privileged


@pytest.fixture
def bare() -> Iterator[Home]:
    """A home that is not there yet. Removed at the end, however far the test has come."""
    with tempfile.TemporaryDirectory(prefix=f"setup-{os.getpid()}-", dir=make_temp_root()) as folder:
        home = Home(Path(folder) / "h")
        OPEN.add(home)
        yield home
        if home.path.exists():
            home.must("setup", "--remove")
        OPEN.discard(home)


def config(home: Home) -> dict[str, object]:
    found = json.loads((home.path / "config.json").read_text())
    assert isinstance(found, dict)
    return found


def as_nobody(home: Home, *args: str, groups: list[int] | None = None) -> "subprocess.CompletedProcess[str]":
    nobody = pwd.getpwnam("nobody")
    return subprocess.run(
        home.argv(*args),
        env=home.env,
        cwd="/",
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=groups or [],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_makes_a_home_that_works(bare: Home) -> None:
    done = bare.must("setup")
    assert done.stdout == ""
    assert f"made {bare.path}" in done.stderr
    assert config(bare)["home_id"] == bare.id
    assert bare.path.stat().st_mode & 0o777 == 0o700
    bare.must("shell", "-d")
    assert bare.must("exec", "--", "echo works").stdout == "works\n"


def test_a_second_time_it_changes_nothing(bare: Home) -> None:
    bare.must("setup")
    before = {path: path.stat().st_mtime_ns for path in bare.path.glob("config*")}
    again = bare.must("setup")
    assert "made" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in bare.path.glob("config*")} == before


def test_it_keeps_what_else_is_in_the_configuration(bare: Home) -> None:
    bare.must("setup")
    (bare.path / "config.json").write_text(json.dumps({**config(bare), "later": [1]}))
    bare.must("setup", "--group", "root")
    assert config(bare)["later"] == [1]
    assert config(bare)["group_gid"] == 0


def test_check_tells_what_is_missing_and_changes_nothing(bare: Home) -> None:
    done = bare.cli("setup", "--check")
    assert done.code == 3
    assert "next: " in done.stderr
    assert not bare.path.exists()
    bare.must("setup")
    assert "CRIU" in bare.must("setup", "--check").stderr


def test_remove_ends_sessions_and_leaves_nothing(bare: Home) -> None:
    bare.must("setup")
    bare.must("shell", "-d")
    bare.must("shell", "other", "-d")
    bare.must("stop", "other")
    process = os.pidfd_open(bare.must("ps", "--json").json()[0]["pid"])
    done = bare.must("setup", "--remove")
    assert "ended 1 session" in done.stderr
    assert select.select([process], [], [], 0)[0]  # it has ended
    os.close(process)
    assert not bare.path.exists()
    assert not bare.runtime.exists()
    bare.must("setup", "--remove")  # and once more


def test_remove_works_without_a_daemon_that_works(bare: Home) -> None:
    bare.must("setup")
    bare.must("shell", "-d")
    bare.must("daemon", "stop")
    (bare.path / "names.db").write_bytes(b"no database")
    bare.must("setup", "--remove")
    assert not bare.path.exists()


def test_remove_leaves_what_is_not_its_own(bare: Home) -> None:
    bare.must("setup")
    (bare.path / "letter.txt").write_text("mine")
    done = bare.cli("setup", "--remove")
    assert done.code == 4
    assert "letter.txt" in done.stderr
    assert [path.name for path in sorted(bare.path.iterdir())] == ["config.json", "letter.txt"]
    (bare.path / "letter.txt").unlink()
    bare.must("setup", "--remove")


def test_remove_touches_no_folder_that_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/file").write_text("mine")
    done = Home(tmp_path).cli("setup", "--remove")
    assert done.code == 4
    assert (tmp_path / "pool/file").read_text() == "mine"


def test_check_and_remove_exclude_each_other(bare: Home) -> None:
    assert bare.cli("setup", "--check", "--remove").code == 2


# --- who may use it


@pytest.mark.requires("public-checkout")
def test_only_root_may_by_default(bare: Home) -> None:
    bare.must("setup")
    done = as_nobody(bare, "ps")
    assert done.returncode == 3
    assert "waypoint setup --user nobody" in done.stderr


@pytest.mark.requires("public-checkout")
def test_a_user_may_who_was_named(bare: Home) -> None:
    bare.must("setup", "--user", "nobody")
    done = as_nobody(bare, "shell", "theirs", "-d")
    assert done.stdout == "theirs\n", done.stderr
    assert as_nobody(bare, "exec", "-b", "theirs", "--", "id -un").stdout == "nobody\n"


@pytest.mark.requires("public-checkout")
def test_members_of_a_group_may_that_was_named(bare: Home) -> None:
    bare.must("setup", "--group", "games")
    assert as_nobody(bare, "ps").returncode == 3
    assert as_nobody(bare, "ps", groups=[grp.getgrnam("games").gr_gid]).returncode == 0


@pytest.mark.requires("public-checkout")
def test_who_may_can_be_changed_while_sessions_run(bare: Home) -> None:
    bare.must("setup")
    bare.must("shell", "-d")
    bare.must("exec", "--", "here=1")
    bare.must("setup", "--user", "nobody")
    assert as_nobody(bare, "ps").returncode == 0
    assert bare.must("exec", "--", "echo $here").stdout == "1\n"


@pytest.mark.parametrize("args", [["--user", "nosuch-user"], ["--group", "nosuch-group"]])
def test_an_unknown_name_is_told_and_nothing_is_made(bare: Home, args: list[str]) -> None:
    done = bare.cli("setup", *args)
    assert done.code == 2
    assert args[1] in done.stderr
    assert not bare.path.exists()


@pytest.mark.requires("public-checkout")
def test_an_ordinary_user_is_told_to_use_sudo(bare: Home) -> None:
    done = as_nobody(bare, "setup")
    assert done.returncode == 3
    assert "sudo" in done.stderr
    assert not bare.path.exists()


@pytest.mark.requires("public-checkout")
def test_an_ordinary_user_is_told_how_a_stopped_daemon_is_started(bare: Home) -> None:
    bare.must("setup", "--user", "nobody")
    bare.must("daemon", "stop")
    done = as_nobody(bare, "ps")
    assert done.returncode == 3
    assert "only root can start it" in done.stderr


def test_the_checkouts_own_command_sets_up_too(bare: Home) -> None:
    subprocess.run([ROOT / "dev", "waypoint", "setup"], env=bare.env, check=True, capture_output=True)
    assert config(bare)["home_id"] == bare.id
