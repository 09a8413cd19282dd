"""Small files, functions and classes."""

import ast
import collections
from collections.abc import Iterator

from tests.repo import tree

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_METHODS = 12
MAX_MODULES = 12

SOURCE_SUFFIXES = {".py", ".sh", ".bash", ".zsh", ".toml"}


def too_large() -> Iterator[tuple[str, int]]:
    for path in tree.files():
        if path.suffix in SOURCE_SUFFIXES or path.parts in {("dev",), (".ci", "run")}:
            lines = tree.text(path).count("\n")
            if lines > MAX_FILE_LINES:
                yield str(path), lines
    for path in tree.python_files():
        yield from ((f"{path} {name}", size) for name, size in large_parts(tree.parsed(path)))


def large_parts(module: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.name, lines
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            count = sum(not is_attribute_like(method) for method in methods)
            if count > MAX_METHODS:
                yield node.name, count


def is_attribute_like(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Properties read as attributes; `__enter__` and its like belong to the language. Neither counts as a method."""
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in method.decorator_list}
    return bool(decorators & {"property", "setter"}) or (method.name.startswith("__") and method.name.endswith("__"))


def test_nothing_is_larger_than_the_house_allows() -> None:
    assert [f"{name}: {size}" for name, size in too_large()] == []


def test_no_room_is_crowded() -> None:
    """A room within a room is a room of its own."""
    rooms = collections.Counter(path.parent for path in tree.python_files(*tree.CODE) if path.name != "__init__.py")
    assert {str(room): count for room, count in rooms.items() if count > MAX_MODULES} == {}


def test_a_long_function_and_a_broad_class_are_seen() -> None:
    function = "async def long():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    methods = "class Broad:\n" + "".join(f"    def m{number}(self): ...\n" for number in range(MAX_METHODS + 1))
    assert dict(large_parts(ast.parse(function + methods))) == {
        "long": MAX_FUNCTION_LINES + 1,
        "Broad": MAX_METHODS + 1,
    }
