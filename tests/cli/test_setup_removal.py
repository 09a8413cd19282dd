"""`setup --remove` that fails: it leaves a home that works or can be removed, and no unit that would start it anew."""

import subprocess

import pytest

from tests.cli.test_setup import bare as bare
from tests.cli.test_setup import unit_of
from tests.homes import Home

pytestmark = pytest.mark.privileged


def test_a_removal_that_ends_half_way_has_removed_the_unit_first(bare: Home) -> None:
    (bare.root / "run/systemd/system").mkdir(parents=True)
    bare.must("setup")
    (bare.path / "theirs").touch()
    done = bare.cli("setup", "--remove", "--yes")
    assert (done.code, "theirs" in done.stderr) == (4, True)
    assert not unit_of(bare).exists()  # it would start the daemon of the home again and again
    (bare.path / "theirs").unlink()
    bare.must("setup", "--remove", "--yes")
    assert not bare.path.exists()


def test_a_removal_that_cannot_begin_changes_nothing(bare: Home) -> None:
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
