"""Imports have one direction. A new arrow is a design decision: change docs/architecture.md in the same commit."""

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

BELOW_CAPTURE = {"records", "store", "upper", "processes", "linux", "model"}
BELOW_SESSION = {"terminal", "launch", "egress", "capture", *BELOW_CAPTURE}

MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "linux": {"model"},
    "records": {"linux", "model"},
    "store": {"linux", "model"},
    "upper": {"linux", "model"},
    "processes": {"linux", "model"},
    "capture": {*BELOW_CAPTURE, "shellwrap"},
    "egress": BELOW_CAPTURE,
    "launch": {"capture", "egress", *BELOW_CAPTURE},
    "terminal": {"capture", "egress", *BELOW_CAPTURE, "shellwrap"},
    "branch": BELOW_SESSION,
    "session": {"branch", *BELOW_SESSION, "shellwrap"},
    "setup": {"branch", *BELOW_SESSION},
    "service": {"session", "branch", "setup", *BELOW_SESSION},
    "daemon": {"service", "linux", "model"},
    "client": {"model"},
    "agents": {"client", "model"},
    "cli": {"agents", "client", "model", "shellwrap"},
    "shellwrap": set(),
    "criu_profiles": set(),
}
"""For each package, the packages that it may import from, besides the standard library and itself."""

INSIDE: dict[str, dict[str, set[str]]] = {
    "linux": {
        "calls": set(),
        "storage": {"calls"},
        "tasks": {"calls", "storage"},
        "net": {"calls", "tasks"},
        "tty": {"calls"},
    },
    "processes": {"criu": set(), "respawn": set()},
    "capture": {"steps": set(), "layers": {"steps"}, "storing": {"layers"}},
    "store": {"": set(), "archives": {""}, "oci": {"", "archives"}},
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
    "agents": {"": set(), "mcp": {""}, "plugin": set()},
    "cli": {
        "": set(),
        "fast": {""},
        "commands": {""},
        "entry": {"", "fast", "commands"},
        "main": {"entry"},
    },
    "model": {"": set(), "verbs": {""}, "rendering": {"", "verbs"}},
}
"""For each inner package, the inner packages beside it that it may import from. "" is the modules of the package
itself; without a row they may import from all inner packages. A module above or below the others has a row of its own.
"""

MAY_USE: dict[str, set[str]] = {
    "model": {"msgspec"},
    "records": {"msgspec"},
    "store": {"blake3", "cryptography", "msgspec", "pyfastcdc", "rfc8785", "zstandard"},
    "processes": {"msgspec"},
    "upper": {"msgspec"},
    "capture": {"msgspec"},
    "launch": {"msgspec"},
    "terminal": {"msgspec"},
    "session": {"msgspec"},
    "branch": {"msgspec"},
    "setup": {"msgspec"},
    "service": {"msgspec"},
    "daemon": {"msgspec", "h11"},
    "agents": {"anyio", "mcp", "mcp_types", "msgspec", "pydantic", "uvicorn"},
    "cli": {"click"},
}
"""For each package, the third-party packages that it may import. `linux`, `client` and `shellwrap` may import none, so
that they start fast.
"""


STANDARD_LIBRARY = sys.stdlib_module_names | {"_sha2", "_sha256"}
"""The modules of every supported Python. Since 3.12 `_sha256` is `_sha2`."""


def package_of(module: str) -> str:
    """`waypoint.linux.calls.libc` is in `linux`; `shellwrap.ring` in `shellwrap`; `waypoint` itself in none."""
    parts = module.split(".")
    return parts[0] if parts[0] != "waypoint" else (parts[1] if len(parts) > 1 else "")


IMPORTERS = ("__import__", "import_module")
BY_NAME: dict[str, list[str]] = {
    "waypoint/cli/entry.py": [f"waypoint.cli.{place.partition(':')[0]}" for place in PLACES.values()],
    "waypoint/model/packages.py": [],
}
"""Modules that import by a computed name, and the modules that they may import so. `packages` only tests whether
packages can be imported.
"""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import, also of those inside functions, under TYPE_CHECKING, and by name."""
    parents = path.parent.parts
    for node in ast.walk(tree.parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = parents[: len(parents) - node.level + 1] if node.level else ()
            base = ".".join([*start, *filter(None, [node.module])])
            # `from waypoint import linux` names the package as the alias.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            match node.args[0]:
                case ast.Constant(value=str() as name):
                    yield node.lineno, name
                case _:
                    yield from ((node.lineno, name) for name in BY_NAME.get(str(path), ["a computed name"]))


def forbidden(path: Path) -> Iterator[str]:
    package = package_of(tree.module_name(path))
    for line, name in imports(path):
        top, target = name.split(".")[0], package_of(name)
        if top in {"waypoint", "shellwrap", "criu_profiles", "tests"}:
            allowed = target in {package, *MAY_IMPORT[package]} or name in {"waypoint", "waypoint.__version__"}
        else:
            allowed = top in STANDARD_LIBRARY or top in MAY_USE.get(package, set())
        if not allowed:
            yield f"{path}:{line}: {package} may not import {name}"


def test_imports_follow_the_table() -> None:
    paths = [path for path in tree.python_files(*tree.CODE) if path != Path("waypoint/__init__.py")]
    assert len(paths) > 10
    assert [problem for path in paths for problem in forbidden(path)] == []


def inner_package_of(module: str, package: str) -> str:
    """`waypoint.terminal.exec.command_record` is in `exec`; `waypoint.terminal.reader` in none, which is ""."""
    names = module.removeprefix(f"waypoint.{package}.").split(".")
    return names[0] if names[0] in INSIDE[package] else ""


def forbidden_inside(path: Path) -> Iterator[str]:
    package = path.parts[1]
    inner = inner_package_of(tree.module_name(path), package)
    allowed = {inner, *INSIDE[package].get(inner, INSIDE[package])}
    for line, name in imports(path):
        if name.startswith(f"waypoint.{package}.") and inner_package_of(name, package) not in allowed:
            yield f"{path}:{line}: {inner or package} may not import {name}"


def test_imports_inside_a_package_follow_the_table() -> None:
    for package, table in INSIDE.items():
        paths = [path for path in tree.python_files("waypoint") if path.parts[1] == package]
        folders = {path.parts[2] for path in paths if len(path.parts) > 3}
        assert folders == {inner for inner in table if inner and (ROOT / "waypoint" / package / inner).is_dir()}, (
            package
        )
        assert [problem for path in paths for problem in forbidden_inside(path)] == []


def test_inner_packages_are_in_the_table() -> None:
    deep = {path.parts[1] for path in tree.python_files("waypoint") if len(path.parts) > 3}
    assert deep == set(INSIDE)


def test_no_module_imports_itself_through_others() -> None:
    """Imports within functions and for types count too."""
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


def test_every_package_is_in_the_table() -> None:
    folders = {path.parts[:2] for path in tree.python_files("waypoint") if len(path.parts) > 2}
    assert {folder for _, folder in folders} <= set(MAY_IMPORT)


def test_the_table_has_no_cycle() -> None:
    left = {package: set(below) for package, below in MAY_IMPORT.items()}
    while ready := {package for package, below in left.items() if not below}:
        left = {package: below - ready for package, below in left.items() if package not in ready}
    assert left == {}


def drawing() -> list[set[str]]:
    """Return the chain of packages in docs/architecture.md: one set for each level between two arrows."""
    page = (ROOT / "docs/architecture.md").read_text()
    chain = re.search(r"^cli ─▶ .*(?:\n +─▶ .*)*$", page, re.MULTILINE)
    assert chain, "docs/architecture.md has no line that begins with 'cli ─▶'"
    return [set(re.findall(r"\w+", place)) for place in re.split(r"─▶|──\(unix socket\)──▶", chain[0])]


def test_the_table_agrees_with_the_drawing_in_the_document() -> None:
    """Packages import only from packages further down. Across the socket only `model` is shared."""
    places = drawing()
    depth = {package: number for number, place in enumerate(places) for package in place}
    assert set(depth) == {package for package in MAY_IMPORT if package not in {"shellwrap", "criu_profiles"}}
    above_socket = {"cli", "agents", "client"}
    for package, below in MAY_IMPORT.items():
        drawn = {other for other in below if other in depth}
        assert all(depth[other] > depth[package] for other in drawn), package
        if package in above_socket:
            assert drawn <= {*above_socket, "model"}, package


def test_each_arrow_of_the_drawing_is_allowed() -> None:
    places = drawing()
    for upper, lower in itertools.pairwise(places):
        if upper != {"client"}:  # the arrow below `client` is the socket, not an import
            assert all(lower <= MAY_IMPORT[package] for package in upper), (upper, lower)


def test_the_document_lists_the_packages_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    listed = {
        package_of(name.replace("/", "."))
        for name in re.findall(r"^\| `(waypoint/\w+|shellwrap)` \|", page, re.MULTILINE)
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


def test_only_the_listed_modules_import_by_a_computed_name() -> None:
    found = {
        str(path)
        for path in tree.python_files(*tree.CODE)
        for call, called in tree.calls(tree.parsed(path))
        if called.endswith(IMPORTERS) and not isinstance(call.args[0], ast.Constant)
    }
    assert found == set(BY_NAME)


def test_a_package_that_is_not_in_the_table_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse("import waypoint.model.names"))
    with pytest.raises(KeyError, match="novelty"):
        list(forbidden(Path("waypoint/novelty/trial.py")))
