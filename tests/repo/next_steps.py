"""The next steps that the program's messages advise, as they stand in its text."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.places import ROOT
from tests.repo import tree

ADVISING = {
    *("WaypointError", "UsageProblem", "UnknownName", "HostLacks", "StateConflict", "CannotCapture", "StoreDamaged"),
    *("NotAllowed", "Failed", "Conflicting", "Bug", "AptFailed", "LauncherDied", "Misplaced", "Cause", "Diagnosis"),
}
"""The classes whose fourth value is a next step: errors, and what errors are made of."""
PLACES = dict.fromkeys(ADVISING, 3) | {"_Reason": 1, "VerifiedFacts": 4}
"""Where the next step stands among the values of these classes."""
NAMES = ("next_step", "usage", "remedy")
SAID = "next: "
"""What is in front of a step that the program prints itself."""
OF_A_SCRIPT = re.compile(r"^\s*next='([^']*)'", re.MULTILINE)


@functools.cache
def advised() -> frozenset[str]:
    """Every text of a next step, `{}` in place of what is put into it; without those that are nothing else."""
    found = {text for path in tree.python_files("waypoint") for text in _advised_by(tree.parsed(path), path)}
    scripts = [tree.text(path) for path in tree.files() if path.parts[0] in tree.CODE and path.suffix == ".sh"]
    found.update(*map(OF_A_SCRIPT.findall, scripts))
    return frozenset(text for text in found if re.search(r"\w", text))


def told_in(path: Path) -> str:
    """What is in the strings of a test file, and of the files beside it that it imports; in patterns, without `\\`."""
    imported = [node.module for node in ast.walk(tree.parsed(path)) if isinstance(node, ast.ImportFrom) and node.module]
    beside = {path.parent / f"{name.rpartition('.')[2]}.py" for name in imported} & set(tree.files())
    return "\n".join(text for one in (path, *beside) for text in _strings(tree.parsed(one)))


def _strings(module: ast.Module) -> Iterator[str]:
    told = tree.docstrings(module)
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and node not in told):
            yield from (text.replace("\\", "") for text in _texts(node, module, Path()))


def _advised_by(module: ast.Module, path: Path) -> Iterator[str]:
    parts = {part for node in ast.walk(module) if isinstance(node, ast.JoinedStr) for part in node.values}
    not_said = tree.docstrings(module) | parts
    for node in ast.walk(module):
        match node:
            case ast.Call(func=called, args=args, keywords=keywords):
                place = PLACES.get(called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
                if place is not None:
                    given = args[place : place + 1] or [one.value for one in keywords if one.arg in NAMES][:1]
                    yield from (text for one in given for text in _texts(one, module, path))
            case ast.Assign(targets=[ast.Attribute(attr="next_step")], value=value):
                yield from _texts(value, module, path)
            case ast.Constant() | ast.JoinedStr() if node not in not_said:
                yield from (text.partition(SAID)[2] for text in _texts(node, module, path) if SAID in text)


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
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            yield from (
                text for value, where, file in _values(name, module, path) for text in _texts(value, where, file)
            )


Found = tuple[ast.expr, ast.Module, Path]


def _values(name: str, module: ast.Module, path: Path) -> Iterator[Found]:
    """What the variable gets, or what the function of this name returns, in this module or in the one from which it is
    imported.
    """
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value, module, path
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                for place, target in enumerate(targets):
                    if isinstance(target, ast.Name) and target.id == name:
                        yield from _parts(value, place, module, path)
            case ast.FunctionDef(name=found) if found == name:
                returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
                yield from ((value, module, path) for value in returned)
            case ast.ImportFrom(module=str(origin), names=names) if name in {one.name for one in names}:
                other = Path(f"{origin.replace('.', '/')}.py")
                if (ROOT / other).is_file():
                    yield from _values(name, tree.parsed(other), other)


def _parts(node: ast.expr, place: int, module: ast.Module, path: Path) -> Iterator[Found]:
    """What stands at `place` in the tuples that the expression may be."""
    match node:
        case ast.Tuple(elts=values):
            yield values[place], module, path
        case ast.IfExp(body=body, orelse=other):
            yield from (found for one in (body, other) for found in _parts(one, place, module, path))
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            for value, where, file in _values(name, module, path):
                yield from _parts(value, place, where, file)
