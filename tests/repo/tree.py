"""The files of the repository and their syntax trees, for the tests of this folder."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.places import ROOT

CODE = ("waypoint", "shellwrap", "criu_profiles")


@functools.cache
def files() -> tuple[Path, ...]:
    """Files in version control and new files that are not ignored, relative to the root."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return tuple(sorted(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()))


def text(path: Path) -> str:
    """The file's text; bytes that are not UTF-8, as in a database, become surrogates."""
    return (ROOT / path).read_text(errors="surrogateescape")


def python_files(*tops: str) -> Iterator[Path]:
    """Python files below the given top-level folders (none: everywhere), and `dev`."""
    for path in files():
        is_python = path.suffix == ".py" or path.parts == ("dev",)
        if is_python and (not tops or path.parts[0] in tops):
            yield path


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text(path), filename=str(path))


def module_name(path: Path) -> str:
    """`waypoint/linux/calls/libc.py` is `waypoint.linux.calls.libc`; a package's `__init__.py` is the package."""
    parts = list(path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def docstrings(tree: ast.AST) -> set[ast.Constant]:
    """The nodes of all docstrings, also of those under a constant."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def continuations(tree: ast.AST) -> set[ast.Constant]:
    """The literal parts of f-strings, except the first part of each."""
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    return {part for string in strings for part in string.values[1:] if isinstance(part, ast.Constant)}


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the called name as written: `time.sleep`, `ctypes.CDLL`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)
