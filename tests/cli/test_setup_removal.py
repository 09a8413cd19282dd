"""A failed `setup --remove` leaves a home that works or can be removed, and no unit that would start it again."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_setup import bare as bare
from tests.cli.test_setup import unit_of
from tests.homes import Home
from tests.places import home_id

pytestmark = [pytest.mark.soak(part="setup"), pytest.mark.privileged]


def test_an_interrupted_removal_has_removed_the_unit_first(bare: Home) -> None:
    (bare.root / "run/systemd/system").mkdir(parents=True)
    bare.must("setup")
    (bare.path / "theirs").touch()
    done = bare.cli("setup", "--remove", "--yes")
    assert (done.code, "theirs" in done.stderr) == (4, True)
    assert not unit_of(bare).exists()  # the unit would start the daemon again and again
    (bare.path / "theirs").unlink()
    bare.must("setup", "--remove", "--yes")
    assert not bare.path.exists()


def test_a_home_that_others_could_replace_is_not_removed(bare: Home, tmp_path: Path) -> None:
    """Otherwise root would remove files behind a link that another user has put into that directory."""
    precious = tmp_path / "precious"
    (precious / "tree").mkdir(parents=True)
    theirs = bare.path.parent / "theirs"
    theirs.mkdir()
    config = {"format": 1, "home_id": home_id(theirs), "owner_uid": 0}
    (theirs / "config.json").write_text(json.dumps(config))
    (theirs / "pool").symlink_to(precious)
    os.chown(theirs, 65534, 65534)
    done = bare.cli("setup", "--remove", "--yes", env={"WAYPOINT_HOME": str(theirs)})
    assert (done.code, "belongs to user 65534" in done.stderr) == (3, True)
    assert sorted(path.name for path in theirs.iterdir()) == ["config.json", "pool"]
    assert (precious / "tree").is_dir()
    os.chown(theirs, 0, 0)
    bare.must("setup", "--remove", "--yes", env={"WAYPOINT_HOME": str(theirs)})


def test_a_removal_that_cannot_start_changes_nothing(bare: Home) -> None:
    (bare.root / "run/systemd/system").mkdir(parents=True)
    bare.must("setup")
    point = bare.path / "criu"
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True)
    try:
        done = bare.cli("setup", "--remove", "--yes")
        assert (done.code, "something is mounted in it" in done.stderr) == (4, True)
        assert unit_of(bare).exists()
        bare.must("ps")
    finally:
        subprocess.run(["umount", str(point)], check=True)
