"""Imports flow one way. A new arrow is a design decision: change docs/architecture.md in the same commit."""

import ast
import itertools
import re
import sys
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.repo import tree
from waypoint.cli.entry import PLACES

BELOW_CAPTURE = {"store", "upper", "processes", "linux", "model"}
BELOW_SESSION = {"terminal", "launch", "egress", "capture", *BELOW_CAPTURE}

MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "linux": {"model"},
    "store": {"linux", "model"},
    "upper": {"linux", "model"},
    "processes": {"linux", "model"},
    "capture": {*BELOW_CAPTURE, "shellwrap"},
    "egress": BELOW_CAPTURE,
    "launch": {"capture", "egress", *BELOW_CAPTURE},
    "terminal": {"capture", "egress", *BELOW_CAPTURE, "shellwrap"},
    "session": {*BELOW_SESSION, "shellwrap"},
    "branch": BELOW_SESSION,
    "setup": BELOW_SESSION,
    "service": {"session", "branch", "setup", *BELOW_SESSION},
    "daemon": {"service", "linux", "model"},
    "client": {"model"},
    "cli": {"client", "model", "shellwrap"},
    "shellwrap": set(),
    "criu_profiles": set(),
}
"""Per room, the rooms it may import from, besides the standard library and itself."""

INSIDE: dict[str, dict[str, set[str]]] = {
    "linux": {
        "calls": set(),
        "storage": {"calls"},
        "tasks": {"calls", "storage"},
        "net": {"calls", "tasks"},
        "tty": {"calls"},
    },
    "processes": {"criu": set(), "respawn": set()},
    "capture": {"steps": set(), "layers": {"steps"}},
    "launch": {"walls": set(), "": {"walls"}, "ground": {"", "walls"}},
    "terminal": {
        "": set(),
        "hooks": {""},
        "exec": {"", "hooks"},
        "shell": {"", "hooks", "exec"},
        "inside": {"hooks"},
    },
    "session": {"live": set(), "birth": {"live"}},
    "setup": {"machine": set()},
    "service": {"background": set(), "inside": {"", "background"}},
    "daemon": {"http": set()},
    "cli": {
        "": set(),
        "fast": {""},
        "commands": {""},
        "entry": {"", "fast", "commands"},
        "main": {"entry"},
    },
    "model": {"": set(), "verbs": {""}, "rendering": {"", "verbs"}},
}
"""Rooms with rooms in them: per inner room, the ones beside it that it may import from. "" stands for the modules that
lie in the room itself; where it has no row, they may import from all of its inner rooms. A module that stands above or
below the others in its room has a row of its own.
"""

MAY_USE: dict[str, set[str]] = {
    "model": {"msgspec"},
    "store": {"msgspec"},
    "processes": {"msgspec"},
    "capture": {"msgspec"},
    "launch": {"msgspec"},
    "terminal": {"msgspec"},
    "session": {"msgspec"},
    "branch": {"msgspec"},
    "setup": {"msgspec"},
    "service": {"msgspec"},
    "daemon": {"msgspec", "h11"},
    "cli": {"click"},
}
"""Per room, packages from elsewhere. `linux`, `client` and `shellwrap` have none: they start fast and stand alone."""


STANDARD_LIBRARY = sys.stdlib_module_names | {"_sha2", "_sha256"}
"""Of every Python that is supported: the latter became the former in 3.12."""


def room_of(module: str) -> str:
    """`waypoint.linux.calls.libc` is in `linux`; `shellwrap.ring` in `shellwrap`; `waypoint` itself in none."""
    parts = module.split(".")
    return parts[0] if parts[0] != "waypoint" else (parts[1] if len(parts) > 1 else "")


IMPORTERS = ("__import__", "import_module")
BY_NAME: dict[str, list[str]] = {
    "waypoint/cli/entry.py": [f"waypoint.cli.{place.partition(':')[0]}" for place in PLACES.values()],
    "waypoint/model/packages.py": [],
}
"""Modules that import by a name which they put together, and all that they may import so. `packages` tries packages for
callers that import these themselves.
"""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import, also of those inside functions, under TYPE_CHECKING, and by name."""
    package = path.parent.parts
    for node in ast.walk(tree.parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *filter(None, [node.module])])
            # `from waypoint import linux` names a room in the second half.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            match node.args[0]:
                case ast.Constant(value=str() as name):
                    yield node.lineno, name
                case _:
                    yield from ((node.lineno, name) for name in BY_NAME.get(str(path), ["a name that is put together"]))


def forbidden(path: Path) -> Iterator[str]:
    room = room_of(tree.module_name(path))
    for line, name in imports(path):
        top, target = name.split(".")[0], room_of(name)
        if top in {"waypoint", "shellwrap", "criu_profiles", "tests"}:
            allowed = target in {room, *MAY_IMPORT[room]} or name in {"waypoint", "waypoint.__version__"}
        else:
            allowed = top in STANDARD_LIBRARY or top in MAY_USE.get(room, set())
        if not allowed:
            yield f"{path}:{line}: {room} may not import {name}"


def test_imports_follow_the_table() -> None:
    paths = [path for path in tree.python_files(*tree.CODE) if path != Path("waypoint/__init__.py")]
    assert len(paths) > 10
    assert [problem for path in paths for problem in forbidden(path)] == []


def inner_room_of(module: str, room: str) -> str:
    """`waypoint.terminal.exec.command_record` is in `exec`; `waypoint.terminal.reader` in none, which is ""."""
    names = module.removeprefix(f"waypoint.{room}.").split(".")
    return names[0] if names[0] in INSIDE[room] else ""


def forbidden_inside(path: Path) -> Iterator[str]:
    room = path.parts[1]
    inner = inner_room_of(tree.module_name(path), room)
    allowed = {inner, *INSIDE[room].get(inner, INSIDE[room])}
    for line, name in imports(path):
        if name.startswith(f"waypoint.{room}.") and inner_room_of(name, room) not in allowed:
            yield f"{path}:{line}: {inner or room} may not import {name}"


def test_imports_inside_a_room_follow_the_table() -> None:
    for room, table in INSIDE.items():
        paths = [path for path in tree.python_files("waypoint") if path.parts[1] == room]
        folders = {path.parts[2] for path in paths if len(path.parts) > 3}
        assert folders == {inner for inner in table if inner and (ROOT / "waypoint" / room / inner).is_dir()}, room
        assert [problem for path in paths for problem in forbidden_inside(path)] == []


def test_rooms_within_rooms_are_in_the_table() -> None:
    deep = {path.parts[1] for path in tree.python_files("waypoint") if len(path.parts) > 3}
    assert deep == set(INSIDE)


def test_no_module_imports_itself_by_a_detour() -> None:
    """Imports within functions and for types alone count, too."""
    paths = {tree.module_name(path): path for path in tree.python_files(*tree.CODE)}
    left = {module: set(known_modules(path, paths)) - {module} for module, path in paths.items()}
    while ready := {module for module, below in left.items() if not below}:
        left = {module: below - ready for module, below in left.items() if module not in ready}
    assert left == {}


def known_modules(path: Path, paths: Container[str]) -> Iterator[str]:
    for _, name in imports(path):
        if name in paths:
            yield name
        elif name.rpartition(".")[0] in paths:
            yield name.rpartition(".")[0]


def test_the_package_itself_imports_nothing() -> None:
    assert list(imports(Path("waypoint/__init__.py"))) == []


def test_every_folder_with_code_is_a_room_of_the_table() -> None:
    folders = {path.parts[:2] for path in tree.python_files("waypoint") if len(path.parts) > 2}
    assert {folder for _, folder in folders} <= set(MAY_IMPORT)


def test_the_table_has_no_cycle() -> None:
    left = {room: set(below) for room, below in MAY_IMPORT.items()}
    while ready := {room for room, below in left.items() if not below}:
        left = {room: below - ready for room, below in left.items() if room not in ready}
    assert left == {}


def drawing() -> list[set[str]]:
    """The chain of rooms in docs/architecture.md, from the top down, as one set for each place between two arrows."""
    page = (ROOT / "docs/architecture.md").read_text()
    chain = re.search(r"^cli ─▶ .*$", page, re.MULTILINE)
    assert chain, "docs/architecture.md has no line that begins with 'cli ─▶'"
    return [set(re.findall(r"\w+", place)) for place in re.split(r"─▶|──\(unix socket\)──▶", chain[0])]


def test_the_table_says_what_the_document_draws() -> None:
    """Each room may import from rooms further down only; the socket cuts the chain: above it only `model` is shared."""
    places = drawing()
    depth = {room: number for number, place in enumerate(places) for room in place}
    assert set(depth) == {room for room in MAY_IMPORT if room not in {"shellwrap", "criu_profiles"}}
    above_socket = {"cli", "client"}
    for room, below in MAY_IMPORT.items():
        drawn = {other for other in below if other in depth}
        assert all(depth[other] > depth[room] for other in drawn), room
        if room in above_socket:
            assert drawn <= {*above_socket, "model"}, room


def test_each_arrow_of_the_drawing_is_allowed() -> None:
    places = drawing()
    for upper, lower in itertools.pairwise(places):
        if upper != {"client"}:  # the socket
            assert all(lower <= MAY_IMPORT[room] for room in upper), (upper, lower)


def test_the_document_lists_the_rooms_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    listed = {
        room_of(name.replace("/", ".")) for name in re.findall(r"^\| `(waypoint/\w+|shellwrap)` \|", page, re.MULTILINE)
    }
    assert listed == set(MAY_IMPORT) - {"criu_profiles"}


@pytest.mark.parametrize(
    "source",
    [
        "import ctypes.util, requests",
        "from waypoint.daemon import routes",
        "from waypoint import daemon",
        "from ..daemon import routes",
        "def f():\n    import waypoint.cli.main",
        "__import__('waypoint.cli.main')",
        "importlib.import_module('waypoint.cli.main', 'x')",
        "__import__(f'waypoint.cli.{name}')",
    ],
)
def test_a_forbidden_import_is_found_however_it_is_written(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(forbidden(Path("waypoint/linux/trial.py")))) == 1


def test_only_the_modules_of_the_list_import_by_a_name_that_they_put_together() -> None:
    found = {
        str(path)
        for path in tree.python_files(*tree.CODE)
        for call, called in tree.calls(tree.parsed(path))
        if called.endswith(IMPORTERS) and not isinstance(call.args[0], ast.Constant)
    }
    assert found == set(BY_NAME)


def test_a_room_that_is_not_in_the_table_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse("import waypoint.model.names"))
    with pytest.raises(KeyError, match="novelty"):
        list(forbidden(Path("waypoint/novelty/trial.py")))
