"""Errors that tell ordinary users to use sudo; the advised commands are executed."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from tests.advice import follow, make_programs, next_of
from tests.cli.test_setup import SCRIPTS, as_nobody, config, written
from tests.cli.test_setup import bare as bare
from tests.homes import Home

pytestmark = [pytest.mark.soak(part="setup"), pytest.mark.privileged, pytest.mark.requires("public-checkout")]


def test_an_ordinary_user_is_told_to_use_sudo(bare: Home) -> None:
    done = as_nobody(bare, "setup")
    assert done.returncode == 3
    assert next_of(done.stderr) == f"sudo waypoint --home {bare.path} setup"
    assert not bare.path.exists()
    make_programs(bare)
    assert follow(bare, next_of(done.stderr)).code == 0
    assert config(bare)["home_id"] == bare.id


def test_an_ordinary_user_is_told_how_to_start_a_stopped_daemon(bare: Home) -> None:
    bare.must("setup", "--user", "nobody")
    bare.must("daemon", "stop")
    done = as_nobody(bare, "ps")
    assert done.returncode == 3
    assert "only root can start it" in done.stderr
    printed = next_of(done.stderr)
    assert printed.startswith(f"sudo waypoint --home {bare.path} ps")
    make_programs(bare)
    assert follow(bare, printed.partition(" (")[0]).code == 0
    assert as_nobody(bare, "ps").returncode == 0


def test_a_user_with_access_gets_their_own_completion(bare: Home) -> None:
    bare.must("setup", "--user", "nobody")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
        env = {**bare.env, "XDG_DATA_HOME": folder}
        done = as_nobody(bare, "setup", env=env)
        assert done.returncode == 0, done.stderr
        own = {script.removeprefix("usr/local/share/") for script in SCRIPTS}
        assert set(written(Path(folder))) == own
        assert f"fpath+=({folder}/zsh/site-functions)" in done.stderr
        removed = as_nobody(bare, "setup", "--remove", env=env)
        assert removed.returncode == 3
        printed = next_of(removed.stderr)
        assert printed == f"sudo waypoint --home {bare.path} setup --remove"
        make_programs(bare)
        assert follow(bare, printed).code == 0
        assert not bare.path.exists()
