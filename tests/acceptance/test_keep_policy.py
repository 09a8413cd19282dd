"""`waypoint gc --keep-last N`: unnamed captures of a branch's history that a policy keeps."""

import re

import pytest

from tests.acceptance.sessions import inside
from tests.homes import open_home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay")]


def test_a_policy_keeps_what_no_name_does() -> None:
    with open_home("policy") as home:
        home.must("shell", "main", "-d", "--user", "root", "--cwd", "/srv")
        made = []
        for number in range(5):  # the name moves on, and leaves the others without one
            inside(home, "main", f"echo {number} > f")
            name = "first" if number == 0 else "moved"
            made.append(home.must("checkpoint", name, "--force", "--tier", "files", "--json").json()["capture"])
        inside(home, "main", "echo now > f")
        asked = ("gc", "--keep-operations", "0", "--keep-last", "3", "--keep-daily", "1")
        told = home.must(*asked, "--dry-run", "--json").json()
        assert [one["capture"] for one in told["spared"]] == [*made[:1:-1], made[0]]
        newest = ["branch main", "checkpoint moved", "last", "daily"]
        assert [one["why"] for one in told["spared"]] == [newest, ["last"], ["last"], ["checkpoint first"]]
        assert [one["capture"] for one in told["removed"]] == [made[1]]  # the first has a name
        lines = home.must(*asked, "--dry-run").stdout.splitlines()
        assert re.fullmatch(rf"keep    {made[4][:12]}  main, \d+s old: {', '.join(newest)}", lines[0])
        assert re.fullmatch(rf"remove  {made[1][:12]}  main, \d+s old", lines[4])
        kept = home.must("gc", "--dry-run", "--json").json()["spared"]  # without a policy, and with all of the log
        assert [re.sub(r"\d+", "N", one["why"][-1]) for one in kept][1:4] == ["undo N (checkpoint)"] * 3
        assert [one["capture"] for one in home.must(*asked, "--json").json()["removed"]] == [made[1]]
        assert home.must("cat", f"{made[2]}:f").stdout == "2\n"
        assert home.must("cat", "first:f").stdout == "0\n"
        without = home.must("gc", "--keep-operations", "0", "--json").json()
        assert [one["capture"] for one in without["removed"]] == made[2:4]
        assert home.cli("gc", "--keep-last", "0").code == 2
