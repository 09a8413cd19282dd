"""`waypoint guide`: what it tells an agent to do works, from the first line to the last."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.homes import Home
from tests.waiting import PATIENCE_S, until_runs
from waypoint.agents import guide
from waypoint.model.verbs.table import every_verb

MOST_LINES = 150


def examples() -> list[str]:
    """The lines of its examples, without what they say of themselves."""
    shown = "".join(re.findall(r"```sh\n(.*?)```", guide.text(), re.DOTALL))
    return [re.sub(r"\s{2,}#.*", "", line) for line in shown.splitlines()]


@pytest.mark.privileged
@pytest.mark.requires("criu")
def test_all_that_it_shows_can_be_done(home: Home, tmp_path: Path) -> None:
    lines, said = examples(), dict[str, str]()
    assert len(lines) == 18
    for line in lines:
        if "checkpoint safe" in line:  # a person, or an agent, takes longer to the next line than a program to begin
            home.must("exec", "-b", "work", "--", until_runs("sleep 1000"))
        script = f'waypoint() {{ {shlex.join(home.argv())} "$@"; }}\n{line}'
        command = ["bash", "-c", script]
        env = {**home.env, "HOME": "/root"}
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        said[line] = done.stdout
        if line == "waypoint restore safe -b work":
            there = home.must("exec", "-b", "work", "--", "pwd; cat notes; pgrep -fc '^sleep 1000'").stdout
            assert there == "/root/app\none\n1\n"
        elif line.startswith("waypoint undo"):
            assert home.must("exec", "-b", "work", "--", "ls; pgrep -fc '^sleep 1000' || :").stdout == "0\n"
    (forked,) = [out for line, out in said.items() if line.startswith("waypoint fork")]
    assert sorted(forked.splitlines()) == [f"try-{number} | 2" for number in (1, 2, 3)]
    assert "+way 2\n" in said["waypoint diff safe try-2 --patch"]
    assert (tmp_path / "notes").read_text() == "one\nway 2\n"
    assert home.must("ps", "--json").json() == home.must("branch", "list", "--json").json() == []


def test_it_is_short_and_knows_every_command() -> None:
    for agent in ("", *guide.AGENTS):
        said = guide.text(agent)
        assert said.count("\n") < MOST_LINES
        assert max(map(len, said.partition("## All commands")[0].splitlines()[5:])) <= 120
        assert set(re.findall(r"^\* `([a-z ]+)`: ", said, re.MULTILINE)) == {verb.name for verb in every_verb()}


def test_a_skill_begins_as_claude_code_reads_it() -> None:
    first, name, description, last, *_ = guide.text("claude").splitlines()
    assert (first, name, last) == ("---", "name: waypoint", "---")
    assert re.fullmatch(r'description: "[^"\\]{100,1024}"', description)


def test_the_command_prints_it(home: Home) -> None:
    assert home.must("guide", "--for", "claude").stdout == guide.text("claude")
    assert home.must("guide").stdout == guide.text()
