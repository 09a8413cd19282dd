"""`waypoint profile`: what counts, one of them, and whether a file would; what its messages advise is done."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_next_steps import next_of
from tests.homes import Home
from tests.waiting import until_runs
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]

MINE = 'reason = "mine"\n[match]\nprograms = ["mine", "sleep"]\n'


@pytest.fixture
def folder(home: Home) -> Iterator[Path]:
    """That of the home's own profiles; empty again afterwards."""
    made = home.path / "profiles"
    made.mkdir(mode=0o755)
    yield made
    for path in made.iterdir():
        path.unlink()
    made.rmdir()


def put(folder: Path, name: str, text: str = MINE) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_the_list_has_ours_and_the_home_s_own(home: Home, folder: Path) -> None:
    put(folder, "mine.toml")
    done = home.must("profile", "list")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert (done.stderr, lines[0], lines[1]) == (
        "",
        ["PROFILE", "FROM", "PROGRAMS"],
        ["mine", "the", "home", "mine", "sleep"],
    )
    assert ["redis", "Waypoint", "redis-server", "valkey-server", "keydb-server"] in lines
    rows = home.must("profile", "list", "--json").json()
    assert rows["problems"] == []
    assert [(row["name"], row["is_own"]) for row in rows["profiles"]][:2] == [("mine", True), ("base", False)]


def test_one_is_printed_as_it_is_in_its_file(home: Home, folder: Path) -> None:
    text = home.must("profile", "show", "postgres").stdout
    copy = put(folder, "copy.toml", text)
    assert home.must("profile", "test", str(copy)).stderr == f"{copy} is a profile\n"
    assert home.must("profile", "show", "postgres", "--json").json()["text"] == text
    refused = home.cli("profile", "show", "nosuch")
    assert (refused.code, next_of(refused.stderr)) == (2, "see 'waypoint profile list'")


def test_a_file_is_tried_before_it_counts(home: Home, tmp_path: Path) -> None:
    path = put(tmp_path, "mine.toml")
    home.must("shell", "tried", "-d")
    begin = "sleep 1000 & python3 -c 'import time; time.sleep(1000)' --password hunter2 &"
    begun = until_runs("sleep 1000", "python3 -c import time; time.sleep(1000) --password hunter2")
    home.must("exec", "-b", "tried", "--", f"{begin} {begun}")
    plain = home.must("profile", "test", "-b", "tried", "--json").json()
    assert plain["problems"] == []
    assert [row["profile"] for row in plain["processes"]] == ["shell", "shell", "base", "python"]
    done = home.must("profile", "test", str(path), "-b", "tried")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["PROFILE", "shell", "shell", "mine", "python"]
    assert "hunter2" not in done.stdout
    assert [one.name for one in Client(home.path).profiles.all().profiles if one.is_own] == []
    assert home.cli("profile", "test", "-b", "nosuch").code == 2


@pytest.mark.parametrize("text", ["unknown = 1\n", "reason = [", "x = " + "[" * 5000, "# " + "x" * 70000])
def test_what_is_no_profile_is_refused_in_four_parts(home: Home, tmp_path: Path, text: str) -> None:
    path = put(tmp_path, "bad.toml", text + MINE)
    refused = home.cli("profile", "test", str(path))
    assert refused.code == 2
    assert refused.stderr.startswith("waypoint: cannot read the profile bad.toml: ")
    assert next_of(refused.stderr) == "mend or remove it; 'waypoint profile show base' prints one that is right"
    refused = home.cli("profile", "test", str(tmp_path / "missing.toml"))
    assert (refused.code, next_of(refused.stderr)) == (2, "name a file that you may read")
    put(tmp_path, "bad.toml", home.must("profile", "show", "base").stdout)
    home.must("profile", "test", str(path))


def test_a_file_that_does_not_count_is_told_until_it_is_mended(home: Home, folder: Path) -> None:
    wrong = put(folder, "wrong.toml", "unknown = 1\n" + MINE)
    others = put(folder, "others.toml")
    os.chown(others, 1000, 1000)
    done = home.cli("profile", "test")
    assert (done.code, done.stdout) == (1, "")
    assert f"cannot read {others}: others than root" in done.stderr
    assert f"cannot read the profile {wrong}: Object contains unknown field `unknown`" in done.stderr
    assert home.must("profile", "list").stderr == done.stderr
    assert [one["on"] for one in home.cli("profile", "test", "--json").json()["problems"]] == [str(others), str(wrong)]
    step = next_of(done.stderr)
    assert step == f"chown root {others}; chmod go-w {others}"
    subprocess.run(["sh", "-c", step], check=True)
    wrong.unlink()
    assert home.must("profile", "test").stderr == ""
