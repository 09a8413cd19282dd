"""`waypoint log`, `show`, `branch`, `rm`, `undo` and `op log`."""

import re
from collections.abc import Iterator

import pytest

from tests.cli.conftest import COLS, Spawn, exit_status
from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


def make(home: Home, branch: str) -> list[str]:
    """Make three checkpoints: `<branch>-one`, `<branch>-two`, and `<branch>-three` on the branch `<branch>-f`, a fork
    of the first. Returns the capture ids.
    """
    ids = []
    for name, of in (("one", branch), ("two", branch), ("three", f"{branch}-f")):
        if name == "three":
            home.must("fork", f"{branch}-one", f"{branch}-f")
        words = ["checkpoint", f"{branch}-{name}", "-b", of, "-m", f"message {name}", "--json"]
        ids.append(home.must(*words).json()["capture"])
        home.must("show", ids[-1])  # waits until its changes are counted
    return ids


@pytest.fixture
def made(home: Home, branch: str) -> Iterator[list[str]]:
    """The capture ids of the three checkpoints of `branch`."""
    yield make(home, branch)
    home.cli("stop", f"{branch}-f", "--discard")  # fails if the test has ended the fork


@pytest.fixture(scope="module")
def unchanged(home: Home) -> tuple[str, list[str]]:
    """A branch and the capture ids of its three checkpoints, for tests that change nothing."""
    home.must("shell", "unchanged", "-d")
    return "unchanged", make(home, "unchanged")


def value_of(home: Home, branch: str, word: str) -> str:
    return home.must("exec", "-b", branch, "--", f"echo ${word}").stdout.strip()


def branches(home: Home) -> dict[str, dict[str, object]]:
    return {one["name"]: one for one in home.must("branch", "--json").json()}


def names_of(home: Home, capture: str) -> list[str]:
    found: list[str] = home.must("show", capture, "--json").json()["names"]
    return found


# --- log


def test_the_log_lists_the_captures_of_a_branch_newest_first(home: Home, unchanged: tuple[str, list[str]]) -> None:
    branch, made = unchanged
    one, two, _ = made
    lines = home.must("log", branch).stdout.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(rf"{two[:12]} \({branch}, {branch}-two\) live \d+s ago  no changes  message two", lines[0])
    assert re.fullmatch(rf"{one[:12]} \({branch}-one\) live \d+s ago  no changes  message one", lines[1])


def test_the_changes_of_a_capture_are_counted_once_and_listed(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "cd /srv; printf '1\\n2\\n3\\n' > counted; mkdir -p more; echo x > more/file")
    home.must("checkpoint", f"{branch}-a", "-b", branch)
    home.must("exec", "-b", branch, "--", "cd /srv; sed -i 1d counted; printf '\\0' > binary")
    home.must("checkpoint", f"{branch}-b", "-b", branch)
    counted = {"files": 2, "insertions": 0, "deletions": 1}
    assert home.must("show", f"{branch}-b", "--json").json()["changes"] == counted
    assert "changes      -1 in 2 files" in home.must("show", f"{branch}-b").stdout
    first = home.must("show", f"{branch}-a", "--json").json()["changes"]
    assert first["insertions"] >= 4, "without a parent it is compared with the machine"
    assert [one["changes"] for one in home.must("log", branch, "--json").json()] == [counted, first]
    listed = {one["branch"]: one["changes"] for one in home.must("ps", "--json").json()}
    assert listed[branch] == counted
    assert "-1 in 2 files" in home.must("ps").stdout
    home.must("gc", "--keep-operations", "0s")
    assert home.must("show", f"{branch}-b", "--json").json()["changes"] == counted


def test_the_log_uses_the_given_or_default_branch(home: Home, unchanged: tuple[str, list[str]]) -> None:
    branch, made = unchanged
    expected = home.must("log", branch, "--json").json()
    assert home.must("log", "-b", branch, "--json").json() == expected
    assert home.must("log", "--json", env={"WAYPOINT_BRANCH": branch}).json() == expected
    assert home.must("log", f"{branch}-two", "--json").json() == expected
    assert home.must("log", made[1][:8], "--json").json() == expected
    assert [one["capture"] for one in expected] == [made[1], made[0]]
    assert len(home.must("log", branch, "-n", "1").stdout.splitlines()) == 1


def test_the_graph_shows_where_a_fork_began(home: Home, unchanged: tuple[str, list[str]]) -> None:
    _, made = unchanged
    lines = home.must("log", "--graph", "--all").stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if made[2][:12] in line)
    drawn = [re.split(r" ?[0-9a-f]{12}", line)[0] for line in lines[start : start + 4]]
    own = drawn[0].index("*")  # histories of other tests may be on the left
    assert [line[own:] for line in drawn] == ["*", "| *", "|/", "*"]
    assert [made[number][:12] in lines[start + at] for number, at in ((2, 0), (1, 1), (0, 3))] == [True] * 3


def test_the_graph_of_a_single_branch_is_a_line(home: Home, unchanged: tuple[str, list[str]]) -> None:
    branch, made = unchanged
    lines = home.must("log", branch, "--graph").stdout.splitlines()
    assert [line[:14] for line in lines] == [f"* {made[1][:12]}", f"* {made[0][:12]}"]


def test_the_log_of_all_has_captures_without_a_name(home: Home, branch: str, made: list[str]) -> None:
    home.must("rm", f"{branch}-three")
    home.must("branch", "delete", f"{branch}-f", "--stop")
    [line] = [line for line in home.must("log", "--all").stdout.splitlines() if made[2][:12] in line]
    assert line.startswith(f"{made[2][:12]} live ")


def test_control_characters_in_a_message_are_not_printed(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-c", "-b", branch, "-m", "first \x1b[31m\nsecond")
    assert home.must("log", branch).stdout.endswith("  first ?[31m\n")
    assert home.must("log", branch, "--json").json()[0]["message"] == "first \x1b[31m\nsecond"


@pytest.mark.parametrize("args", [["nosuch"], ["bad name"], ["a", "-b", "b"], ["-n", "0"]])
def test_the_log_of_an_unknown_name_exits_with_2(home: Home, args: list[str]) -> None:
    assert home.cli("log", *args).code == 2


# --- show


def test_show_json_has_all_facts(home: Home, unchanged: tuple[str, list[str]]) -> None:
    branch, made = unchanged
    found = home.must("show", f"{branch}-two", "--json").json()
    assert {"capture", "image", "names", "parents", "tier", "layers", "base", "created"} <= set(found)
    assert (found["capture"], found["parents"]) == (made[1], [made[0]])
    assert found["names"] == [branch, f"{branch}-two"]
    assert (found["tier"], found["base"], found["message"]) == ("live", {"kind": "machine"}, "message two")
    assert found["layers"]["processes"]["count"] >= 1
    assert "PATH" in found["environment"]


def test_show_prints_facts_for_people(home: Home, unchanged: tuple[str, list[str]]) -> None:
    branch, made = unchanged
    facts = dict(re.findall(r"^ *(\w+) +(.*)$", home.must("show", made[1][:8]).stdout, re.MULTILINE))
    assert (facts["capture"], facts["parents"]) == (made[1], made[0])
    assert facts["names"] == f"{branch}, {branch}-two"
    assert "bash" in facts["processes"]
    assert "PATH" in facts["environment"].split()


def test_show_works_for_a_session_without_captures(home: Home, branch: str) -> None:
    home.must("shell", f"{branch}-new", "-d", "--net", "none", "--pids", "200", "--bind", "/opt:/srv/opt:ro")
    facts = dict(re.findall(r"^ *(\w+) +(.*)$", home.must("show", f"{branch}-new").stdout, re.MULTILINE))
    assert (facts["branch"], facts["capture"], facts["network"]) == (f"{branch}-new", "none yet", "none")
    assert facts["state"] == "live"
    assert facts["limits"].endswith("pids 200")
    assert "/srv/opt" in facts["shared"]
    assert home.must("show", f"{branch}-new", "--json").json()["limits"]["pids"] == 200
    home.must("stop", f"{branch}-new", "--discard")


@pytest.mark.parametrize("name", ["nosuch", "bad name", "abc"])
def test_show_of_an_unknown_name_exits_with_2(home: Home, name: str) -> None:
    assert home.cli("show", name).code == 2


# --- branch


def test_branches_are_listed(home: Home, unchanged: tuple[str, list[str]]) -> None:
    branch, made = unchanged
    home.must("stop", "--files", f"{branch}-f")
    found = branches(home)
    assert home.must("branch", "list", "--json").json() == list(found.values())
    assert set(found[branch]) == {"name", "tip", "live", "tier", "created", "captured"}
    assert (found[branch]["live"], found[branch]["tip"], found[branch]["tier"]) == (True, made[1], "live")
    assert found[f"{branch}-f"]["live"] is False
    assert f"{branch}-two" not in found
    heading, *rows = home.must("branch").stdout.splitlines()
    assert heading.split() == ["BRANCH", "STATE", "TIP", "TIER", "AGE"]
    assert [branch, "live", made[1][:12], "live"] in [row.split()[:4] for row in rows]
    assert home.must("branch", "list").stdout.splitlines()[0] == heading


def test_a_live_branch_is_deleted_only_with_stop(home: Home, branch: str) -> None:
    home.must("shell", f"{branch}-x", "-d")
    home.must("stop", "--files", f"{branch}-x")
    done = home.cli("branch", "delete", f"{branch}-x", branch)
    assert done.code == 4
    assert f"it has a running session\n  next: stop it first: waypoint stop {branch}\n" in done.stderr
    assert {branch, f"{branch}-x"} <= set(branches(home))
    home.must("branch", "delete", "--stop", f"{branch}-x", branch)
    assert {branch, f"{branch}-x"} & set(branches(home)) == set()


def test_branch_delete_refuses_checkpoints(home: Home, unchanged: tuple[str, list[str]]) -> None:
    branch, _ = unchanged
    for name in (f"{branch}-two", "nosuch"):
        assert home.cli("branch", "delete", "--stop", branch, name).code == 2
    assert branches(home)[branch]["live"] is True


def test_a_stopped_branch_can_be_renamed(home: Home, branch: str, made: list[str]) -> None:
    assert home.cli("branch", "rename", branch, f"{branch}-new").code == 4
    home.must("stop", "--files", branch)
    assert home.cli("branch", "rename", branch, f"{branch}-one").code == 4
    assert home.cli("branch", "rename", "nosuch", f"{branch}-new").code == 2
    assert home.cli("branch", "rename", branch, "bad name").code == 2
    home.must("branch", "rename", branch, f"{branch}-new")
    assert branch not in branches(home)
    assert branches(home)[f"{branch}-new"]["tier"] == "files"
    home.must("undo")
    assert f"{branch}-new" not in branches(home)
    assert branch in branches(home)


# --- rm


def test_names_are_removed_all_or_none(home: Home, branch: str, made: list[str]) -> None:
    assert home.cli("rm", f"{branch}-one", "nosuch").code == 2
    assert home.cli("rm", f"{branch}-one", branch).code == 4
    assert names_of(home, made[0]) == [f"{branch}-one"]
    home.must("rm", f"{branch}-one", f"{branch}-two")
    assert names_of(home, made[0]) == []
    assert home.cli("show", f"{branch}-one").code == 2


# --- op log and undo


def test_op_log_shows_the_moved_names_and_the_effect_of_undo(home: Home, branch: str, made: list[str]) -> None:
    last, fork, *_ = home.must("op", "log", "-n", "2", "--json").json()
    assert {"number", "at", "verb", "moves", "sessions", "undone", "undoes", "undo", "said", "note", "degraded"} == set(
        last
    )
    assert last["verb"] == "checkpoint"
    assert last["moves"] == {f"{branch}-f": [made[0], made[2]], f"{branch}-three": [None, made[2]]}
    assert (fork["verb"], fork["sessions"], fork["undo"]) == ("fork", {f"{branch}-f": [False, True]}, None)
    of_fork = home.must("op", "log", "-b", f"{branch}-f", "--json").json()
    assert of_fork == [last, fork]
    assert home.must("op", "log", "-b", f"{branch}-f", "-n", "1", "--json").json() == [last]
    heading, first, second = home.must("op", "log", "-n", "2").stdout.splitlines()
    assert heading.split() == ["NUMBER", "AGE", "VERB", "CHANGED", "UNDO"]
    assert f"{branch}-three: none to {made[2][:12]}" in first
    assert f"remove the name {branch}-three" in first
    assert f"no: {branch}-f has been changed since" in second


def test_logs_fit_the_terminal(home: Home, branch: str, made: list[str], on_terminal: Spawn) -> None:
    home.must("checkpoint", f"{branch}-last", "-b", branch, "-m", "word " * 40, "--anew")
    for words in (("op", "log", "-n", "4"), ("log", branch), ("log", branch, "--graph")):
        terminal = on_terminal(*words, env={"NO_COLOR": "1"})
        assert exit_status(terminal) == 0
        shown = terminal.before.decode().splitlines()
        assert max(map(len, shown)) <= COLS < max(map(len, home.must(*words).stdout.splitlines())), shown
        assert made[0][:12] in "".join(shown)


def test_a_new_branch_moves_no_name(home: Home) -> None:
    home.must("shell", "new-one", "-d")
    try:
        line = home.must("op", "log", "-n", "1").stdout.splitlines()[1]
        assert re.search(r"  new-one started  ", line), line
    finally:
        home.must("stop", "new-one", "--discard")


def test_a_checkpoint_can_be_undone(home: Home, branch: str, made: list[str]) -> None:
    told = home.must("op", "log", "-n", "1", "--json").json()[0]
    done = home.must("undo")
    did, when = done.stdout.splitlines()
    assert did == f"undo of operation {told['number']} (checkpoint): {told['undo']}"
    assert when == f"the operation was requested by root, {told['at']}"
    assert re.match(r"undo of operation \d+ \(checkpoint\): .*remove the name", done.stdout)
    assert home.cli("show", f"{branch}-three").code == 2
    assert branches(home)[f"{branch}-f"]["tip"] == made[0]
    assert home.must("op", "log", "-n", "2").stdout.count("was undone") == 1


def test_undo_takes_the_number_of_an_operation(home: Home, branch: str, made: list[str]) -> None:
    home.must("rm", f"{branch}-one")
    number = home.must("op", "log", "-n", "1", "--json").json()[0]["number"]
    home.must("rm", f"{branch}-two")
    found = home.must("undo", str(number), "--json").json()
    assert (found["verb"], found["undoes"]) == ("undo", number)
    assert names_of(home, made[0]) == [f"{branch}-one"]
    assert home.cli("show", f"{branch}-two").code == 2
    assert home.cli("undo", str(number)).code == 4
    assert home.cli("undo", "999999").code == 2
    assert home.cli("undo", "0").code == 2


def test_a_stop_can_be_undone(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "echo kept >/var/tmp/mine")
    home.must("stop", "--files", branch)
    home.must("undo")
    assert branches(home)[branch]["live"] is True
    assert home.must("exec", "-b", branch, "--", "cat /var/tmp/mine").stdout == "kept\n"


def test_undo_of_a_stop_with_a_checkpoint_restores_the_processes(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=42")
    home.must("stop", branch, "--checkpoint", f"{branch}-c")
    home.must("undo")
    assert value_of(home, branch, "mine") == "42"


def test_a_fork_can_be_undone(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    home.must("fork", f"{branch}-c", "-n", "2")
    home.must("undo")
    assert {f"{branch}-c-1", f"{branch}-c-2"} & set(branches(home)) == set()
    assert branches(home)[branch]["live"] is True


def test_a_restore_can_be_undone(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=before; echo before >/var/tmp/mine")
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    home.must("exec", "-b", branch, "--", "mine=after; echo after >/var/tmp/mine")
    home.must("restore", f"{branch}-c", "-b", branch)
    assert home.must("exec", "-b", branch, "--", "echo $mine; cat /var/tmp/mine").stdout == "before\nbefore\n"
    home.must("undo")
    assert home.must("exec", "-b", branch, "--", "echo $mine; cat /var/tmp/mine").stdout == "after\nafter\n"


def test_repeated_undo_reverses_one_earlier_operation_each(home: Home, branch: str, made: list[str]) -> None:
    home.must("rm", f"{branch}-three")
    home.must("rm", f"{branch}-two")
    home.must("restore", f"{branch}-one", "-b", branch)
    told = [home.must("undo").stdout for _ in range(3)]
    assert [re.findall(r"\((\w+)\)", line)[0] for line in told] == ["restore", "remove", "remove"]
    assert names_of(home, made[2]) == [f"{branch}-f", f"{branch}-three"]
    assert branches(home)[branch]["live"] is True


def test_the_removal_of_names_can_be_undone(home: Home, branch: str, made: list[str]) -> None:
    home.must("rm", f"{branch}-one", f"{branch}-two")
    home.must("undo")
    assert names_of(home, made[0]) == [f"{branch}-one"]
    assert names_of(home, made[1]) == [branch, f"{branch}-two"]


def test_a_discard_cannot_be_undone(home: Home, branch: str) -> None:
    home.must("stop", branch, "--discard")
    found = home.must("op", "log", "-n", "1", "--json").json()[0]
    assert (found["undo"], bool(found["said"])) == (None, True)
    assert home.cli("undo", str(found["number"])).code == 4


# --- restore after a rename


@pytest.mark.requires("criu")
def test_restore_finds_a_renamed_branch(home: Home) -> None:
    home.must("shell", "was", "-d")
    home.must("exec", "-b", "was", "--", "kept=yes")
    home.must("checkpoint", "was-cp", "-b", "was", "--park")
    home.must("branch", "rename", "was", "is")
    home.must("shell", "was", "-d")  # a new branch of the old name
    home.must("exec", "-b", "was", "--", "kept=other")
    assert home.must("restore", "was-cp").stdout == "is\n"
    assert [value_of(home, name, "kept") for name in ("is", "was")] == ["yes", "other"]
    assert home.must("exec", "-b", "is", "--", "waypoint checkpoint was-cp --force").stdout.startswith("checkpointed")
    refused = home.cli("exec", "-b", "was", "--", "waypoint checkpoint was-cp --force")
    assert (refused.code, "choose another name, such as was/was-cp\n" in refused.stdout) == (4, True)
    home.must("stop", "--files", "is")
    home.must("branch", "delete", "is")
    home.must("undo")
    assert home.must("restore", "was-cp").stdout == "is\n"
    home.must("branch", "delete", "is", "--stop")
    home.must("shell", "is", "-d")  # a new branch of the new name
    refused = home.cli("restore", "was-cp")
    assert (refused.code, refused.stdout) == (4, "")
    step, _, over = refused.stderr.rpartition("choose a branch: waypoint ")[2].partition(" --new BRANCH, or with -b ")
    assert over == "is\n"
    step += " --new there"
    home.must(*step.split())
    assert value_of(home, "there", "kept") == "yes"
    assert value_of(home, "was", "kept") == "other"
    for name in ("was", "is", "there"):
        home.must("stop", name, "--discard")
