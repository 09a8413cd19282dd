"""Only waypoint/capture contains paths of captures and finds the upper tree of a capture."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo import tree

OWNER = ("waypoint", "capture")
AREA = {"hot", "criu-logs"}
HIDDEN = ("waypoint.capture.layers.hot", "waypoint.capture.layers.files.FILES")
EXCUSED: dict[str, str] = {
    "waypoint/model/records.py": "defines `Capture.tree`, and opens nothing",
    "waypoint/setup/machine/unit.py": "orders the unit after a mount, and opens nothing",
    "waypoint/setup/home_removal.py": "removes a home by the names of its entries, and opens nothing",
}


def reaches_in(path: Path) -> Iterator[str]:
    """Yield code that names the folder of capture images (the hot area) or the upper tree of a capture."""
    module = tree.parsed(path)
    spoken = tree.docstrings(module)
    for node in ast.walk(module):
        match node:
            case ast.ImportFrom(module=str() as name, names=names):
                if {name, *(f"{name}.{alias.name}" for alias in names)} & set(HIDDEN):
                    yield f"{path}:{node.lineno}: imports a name of the owner"
            case (
                ast.Attribute(attr="tree", value=ast.Name(id="capture" | "origin" | "kept" | "taken" | "tip"))
                | ast.Subscript(value=ast.Attribute(attr="layers"), slice=ast.Constant(value="files"))
            ):
                yield f"{path}:{node.lineno}: asks for the tree of a capture"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="pool") | ast.Attribute(attr="pool")), args=arguments):
                if any(is_capture_id(one) for one in arguments):
                    yield f"{path}:{node.lineno}: asks the pool for the tree of a capture"
            case ast.Attribute(attr="_area", value=value) if not (isinstance(value, ast.Name) and value.id == "self"):
                yield f"{path}:{node.lineno}: uses the private area of the owner"
            case ast.Constant(value=str() as text) if node not in spoken and AREA & set(text.split("/")):
                yield f"{path}:{node.lineno}: names the hot area"


def is_capture_id(argument: ast.expr) -> bool:
    return (isinstance(argument, ast.Attribute) and argument.attr == "id") or ast.unparse(argument) == "capture_id"


def test_only_waypoint_capture_contains_paths_of_captures() -> None:
    paths = [path for path in tree.python_files("waypoint") if path.parts[:2] != OWNER and str(path) not in EXCUSED]
    assert [problem for path in paths for problem in reaches_in(path)] == []


def test_every_exception_is_still_needed() -> None:
    assert [name for name in EXCUSED if not list(reaches_in(Path(name)))] == []


@pytest.mark.parametrize(
    "source",
    [
        "from waypoint.capture.layers.hot import Hot",
        "from waypoint.capture.layers import hot",
        "pool.path(origin.tree)",
        "pool.path(capture.layers['files'])",
        "pool.path(capture.id)",
        "home.pool.remove(capture_id)",
        "self._pool_of.pool.snapshot(capture.id, name)",
        "pool = home.captures._area.pool",
        "folder = home / 'hot' / capture",
        "log = home / 'criu-logs' / name",
        "folder = f'{home}/hot/{capture}'",
    ],
)
def test_each_kind_of_access_is_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(reaches_in(Path("any.py")))) == 1
