"""One word for one thing: no two classes or type aliases share a name, nor two modules that are not about the same; and
a session's own folders are spelled once.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo import tree
from waypoint.cli.actions import PLACES

SHARED: dict[str, str] = {
    "Terminal": "of a session, and the layer of a capture that keeps it: the layers are named after what they keep",
}
"""Names that several classes may have."""

ALIKE: dict[str, str] = {
    "activity": "jobs and events: their records, and what can be asked of them",
    "callers": "whoever asks: found by the connection, and noted with an operation",
    "captures": "captures: their owner, and what can be asked of it",
    "completion": "TAB: what fits, the command that answers, the functions of the shells that ask",
    "files": "a layer is named after what it keeps; functions on files",
    "graph": "the graph of captures, and its drawing",
    "history": "the history of a home, in the service and in the SDK",
    "main": "a program",
    "messages": "the messages of a protocol: of HTTP, of CRIU",
    "names": "names: what is legal, and what they stand for",
    "paths": "paths: their type, and those of Waypoint",
    "programs": "a layer is named after what it keeps; running programs",
    "reading": "reading what came in: a request, a record",
    "rewind": "bringing a live session's files back: the session's part, and the tree's",
    "start": "starting a session: the verb, and its steps in the launcher",
    "subject": "a live session as a capture sees it: the protocol, and the class",
    "table": "the table of a room: of verbs, of layers",
    "terminal": "a layer is named after what it keeps; a session's terminal, and that of the command line",
}
"""Names that several modules have, each with what these have in common. A module that carries out a verb of the command
line has the verb's name, as others have that are about this verb.
"""

SPELLED_IN = Path("waypoint/model/paths.py")
FOLDERS = ("run/waypoint", ".waypoint/")
"""How the paths of a session's own folders look (paths.RUN_FOLDER, paths.OWN_FOLDER)."""


def named_types(path: Path) -> Iterator[tuple[str, int]]:
    """Every class, and every alias of a type at a module's top: a name like `OnNotice`, with its line."""
    module = tree.parsed(path)
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
    for step in module.body:
        match step:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name[0].isupper() and name != name.upper():
                    yield name, step.lineno


def shared_names(paths: Iterator[Path]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for name, line in named_types(path):
            found[name].append(f"{path}:{line}")
    return {name: places for name, places in found.items() if len(places) > 1}


def modules_by_name(paths: Iterator[Path]) -> dict[str, list[str]]:
    """The modules by their names, without those that carry out verbs of the command line."""
    of_verbs = {f"waypoint.cli.{place.partition(':')[0]}" for place in PLACES.values()}
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        module = tree.module_name(path)
        if path.name != "__init__.py" and module not in of_verbs:
            found[path.stem].append(module)
    return found


def spelled_folders(path: Path) -> Iterator[str]:
    """Where a folder of a session's own is spelled out, in anything but a docstring."""
    module = tree.parsed(path)
    spoken = tree.docstrings(module)
    for node in ast.walk(module):
        match node:
            case ast.Constant(value=str() as text) if node not in spoken and any(one in text for one in FOLDERS):
                yield f"{path}:{node.lineno}: {text}"


def test_no_two_types_share_a_name() -> None:
    found = shared_names(tree.python_files(*tree.CODE))
    assert {name: places for name, places in found.items() if name not in SHARED} == {}
    assert set(SHARED) <= set(found), "an exception is no longer needed"


def test_modules_share_a_name_only_if_they_are_about_the_same() -> None:
    found = modules_by_name(tree.python_files(*tree.CODE))
    assert {name: modules for name, modules in found.items() if len(modules) > 1 and name not in ALIKE} == {}
    assert [name for name in ALIKE if len(found[name]) < 2] == [], "an exception is no longer needed"


def test_the_folders_of_a_session_are_spelled_once() -> None:
    paths = [path for path in tree.python_files("waypoint") if path != SPELLED_IN]
    assert [problem for path in paths for problem in spelled_folders(path)] == []


@pytest.mark.parametrize(
    "source", ["class Word: ...", "Word = int | str", "Word: type = int", "def f():\n class Word: ..."]
)
def test_each_kind_of_name_is_seen(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert set(shared_names(iter([Path("a.py"), Path("b.py")]))) == {"Word"}


@pytest.mark.parametrize("source", ["x = 'run/waypoint/exit'", "x = f'/run/waypoint/{y}'", "f('/.waypoint/run.sh')"])
def test_each_spelling_is_seen(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(spelled_folders(Path("any.py")))) == 1


@pytest.mark.parametrize("source", ["'''In /run/waypoint.'''", "WORD = 1", "word = 1", "f('.waypoint-aside')"])
def test_what_is_fine_is_not_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    path = Path("any.py")
    assert [*named_types(path), *spelled_folders(path)] == []
