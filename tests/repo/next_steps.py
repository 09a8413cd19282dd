"""The next steps that the program's messages advise, as they stand in its text."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.repo import tree

ERRORS = {
    *("WaypointError", "UsageProblem", "UnknownName", "HostLacks", "StateConflict", "CannotCapture", "StoreDamaged"),
    *("NotAllowed", "Failed", "Bug"),
}
NAMES = ("next_step", "usage", "remedy")


@functools.cache
def advised() -> frozenset[str]:
    """Every text of a next step, `{}` in place of what is put into it."""
    return frozenset(text for path in tree.python_files("waypoint") for text in _advised_by(tree.parsed(path), path))


def _advised_by(module: ast.Module, path: Path) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ERRORS:
            keyword = next((one.value for one in node.keywords if one.arg in NAMES), None)
            given = node.args[3] if len(node.args) > 3 else keyword
            yield from _texts(given, module, path) if given is not None else ()


def _texts(node: ast.AST, module: ast.Module, path: Path) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.IfExp(body=body, orelse=other):
            yield from (text for one in (body, other) for text in _texts(one, module, path))
        case ast.BinOp(left=left, right=right):
            yield from (text for one in (left, right) for text in _texts(one, module, path))
        case ast.BoolOp(values=values):
            yield from (text for one in values for text in _texts(one, module, path))
        case ast.Dict(values=values):
            yield from (text for one in values for text in _texts(one, module, path))
        case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value=value)):
            yield from _texts(value, module, path)
        case ast.Name(id=name):
            yield from _assigned(name, module, path)


def _assigned(name: str, module: ast.Module, path: Path) -> Iterator[str]:
    """The texts that are assigned to the variable in this module, or in the one from which it is imported."""
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield from _texts(value, module, path)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=True):
                    if isinstance(target, ast.Name) and target.id == name:
                        yield from _texts(value, module, path)
            case ast.ImportFrom(module=str(origin), names=names) if name in {one.name for one in names}:
                other = Path(f"{origin.replace('.', '/')}.py")
                yield from _assigned(name, tree.parsed(other), other)
