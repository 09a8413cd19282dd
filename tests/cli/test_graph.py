"""The graph of `log --graph` looks as git draws the same history."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.cli.commands.log import draw

DRAWINGS = {
    "nothing": ({}, ""),
    "one": ({"a": ""}, "* a"),
    "a line": ({"c": "b", "b": "a", "a": ""}, "* c\n* b\n* a"),
    "two from one": (
        {"c": "a", "b": "a", "a": ""},
        r"""
* c
| * b
|/
* a""",
    ),
    "three from one": (
        {"d": "a", "c": "a", "b": "a", "a": ""},
        r"""
* d
| * c
|/
| * b
|/
* a""",
    ),
    "a long branch": (
        {"e": "d", "d": "a", "c": "b", "b": "a", "a": "z", "z": ""},
        r"""
* e
* d
| * c
| * b
|/
* a
* z""",
    ),
    "a branch whose parent is drawn in a later column": (
        {"d": "a", "c": "b", "b": "a", "a": ""},
        r"""
* d
| * c
| * b
|/
* a""",
    ),
    "a tip that is another's parent": ({"c": "b", "b": "", "z": ""}, "* c\n* b\n\n* z"),
    "two unrelated histories beside a line": (
        {"e": "a", "d": "c", "c": "", "b": "", "a": ""},
        r"""
* e
| * d
| * c
|
| * b
* a""",
    ),
    "histories that do not meet": (
        {"d": "b", "c": "a", "b": "", "a": ""},
        r"""
* d
| * c
* | b
 /
* a""",
    ),
    "a line that crosses another": (
        {"e": "a", "d": "b", "c": "a", "b": "", "a": ""},
        r"""
* e
| * d
| | * c
| |/
|/|
| * b
* a""",
    ),
    "a line ends in the middle": (
        {"f": "a", "e": "", "d": "b", "b": "a", "a": ""},
        r"""
* f
| * e
|
| * d
| * b
|/
* a""",
    ),
    "a line ends between others": (
        {"f": "a", "e": "c", "d": "b", "c": "", "b": "a", "a": ""},
        r"""
* f
| * e
| | * d
| * | c
|  /
| * b
|/
* a""",
    ),
    "two parents": (
        {"d": "cb", "c": "a", "b": "a", "a": ""},
        r"""
* d
|\
* | c
| * b
|/
* a""",
    ),
    "cut off below": (
        {"d": "b", "c": "a"},
        r"""
* d
| * c""",
    ),
}


def picture(parents: dict[str, str]) -> str:
    return "\n".join(f"{line} {node}" if node else line for line, node in draw(parents))


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_graph_is_drawn_as_expected(name: str) -> None:
    parents, expected = DRAWINGS[name]
    assert picture(parents) == expected.lstrip("\n")


@st.composite
def histories(pick: st.DrawFn) -> dict[str, str]:
    """Return up to ten captures, the newest first, each with its parent."""
    made: list[tuple[str, str]] = []
    for number in range(pick(st.integers(1, 10))):
        parent = pick(st.sampled_from(["", *(name for name, _ in made)]))
        made.insert(0, (chr(ord("a") + number), parent))
    return dict(made)


@given(histories())
def test_every_line_leads_from_a_capture_to_its_parent_and_nowhere_else(parents: dict[str, str]) -> None:
    lines = list(draw(parents))
    assert [node for _, node in lines if node] == list(parents)
    for child, parent in parents.items():
        top = next(number for number, (_, node) in enumerate(lines) if node == child)
        reached = arrivals(lines, top)  # follows both lines where two lines cross
        assert parent in reached if parent else reached == set()


def arrivals(lines: list[tuple[str, str | None]], top: int) -> set[str]:
    """Return the nodes at the lower ends of all lines that start at the node in line `top`."""
    at = {lines[top][0].index("*")}
    reached: set[str] = set()
    for line, node in lines[top + 1 :]:
        below = set()
        for place in at:
            spot = line.ljust(place + 2)
            if spot[place] == "*" and node:
                reached.add(node)
            elif spot[place] == "|":
                below.add(place)
            if spot[place - 1] == "/" and place:
                below.add(place - 2)
        at = below
    return reached


@pytest.mark.requires("git")
@pytest.mark.parametrize("name", sorted(set(DRAWINGS) - {"nothing", "two parents", "cut off below"}))
def test_the_graph_matches_that_of_git(name: str, tmp_path: Path) -> None:
    """Two differences are left out: git draws two parents wider, and has no blank line between unrelated nodes."""
    parents, expected = DRAWINGS[name]
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]

    def run(*words: str, at: int = 0) -> str:
        env = {"GIT_AUTHOR_DATE": f"@{at} +0000", "GIT_COMMITTER_DATE": f"@{at} +0000", "HOME": str(tmp_path)}
        return subprocess.run([*git, *words], env=env, capture_output=True, text=True, check=True).stdout

    run("init", "-q")
    tree = run("write-tree").strip()
    made: dict[str, str] = {}
    for number, (node, parent) in enumerate(reversed(parents.items()), 1_000_000):
        made[node] = run("commit-tree", tree, "-m", node, *(["-p", made[parent]] if parent else []), at=number).strip()
    drawn = run("log", "--graph", "--date-order", "--format=%s", *made.values())
    related = [line for line in expected.lstrip("\n").splitlines() if line.strip("| ")]
    assert [line.rstrip() for line in drawn.splitlines()] == related
