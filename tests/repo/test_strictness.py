"""What a test accepts: one outcome, within a bound that has a reason. Exceptions are named with their reasons."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo import tree

USUAL_S = 2.0
"""A wait may be as long as this without a word about it. The default of `wait_until` is longer: waiting.py says why."""

STATUSES = {"code", "returncode", "exit", "exitstatus", "exit_status", "status", "wait"}
WAITS = {"wait", "result", "join", "wait_until", "holds_within", "wait_ended", "wait_for", "communicate", "select"}
BOUNDS = {"timeout", "timeout_s", "deadline_s", "wait_prompt_s", "within_s"}

SEVERAL_OUTCOMES: dict[str, str] = {
    "tests/chaos/test_chaos.py": "what was refused is not there, whatever has kept it from being made",
    "tests/session/test_exec_signals.py": "zsh says one of two of what was interrupted, by where the signal meets it",
    "tests/chaos/stored.py": "what was refused is not there, whatever has kept it from being made",
    "tests/chaos/moving.py": "a program that a killed CRIU has ended is known by its status",
    "tests/daemon/test_fuzz.py": "garbage gets any answer that the protocol knows",
}
"""Files with tests that accept one of several exit statuses."""

LONG_WAITS: dict[str, str] = {
    "tests/client/test_command.py": "no wait: the number is that of a descriptor",
    "tests/cli/test_next_steps.py": "the terminal on which `setup` tries CRIU",
}
"""Files with bounds that have no comment."""


def several_outcomes(path: Path) -> Iterator[int]:
    """`code in (0, 125)`, or in something that has a name: then a success and a failure look the same to the test.
    `not in` says what is refused. `assert code != 0` is any failure: one of the machine's, or of the test itself.
    """
    for node in ast.walk(tree.parsed(path)):
        match node:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.NotEq()], comparators=[ast.Constant(value=0)])):
                if _last_name(left) in STATUSES:
                    yield node.lineno
            case ast.Compare(left=left, ops=[ast.In()], comparators=[accepted]) if _last_name(left) in STATUSES:
                if not isinstance(accepted, ast.Tuple | ast.Set | ast.List) or len(accepted.elts) > 1:
                    yield node.lineno


def long_waits(path: Path) -> Iterator[int]:
    """A number of more than USUAL_S seconds as the bound of a wait, or as a constant that is one, without a comment or
    a docstring beside it. Names of constants need none where they are used.
    """
    lines = tree.text(path).splitlines()
    module = tree.parsed(path)
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            for bound in _bounds(node):
                if _is_long(bound) and not _has_comment(lines, bound.lineno):
                    yield bound.lineno
    for node, following in zip(module.body, [*module.body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.endswith("_S") and _is_long(value):
                is_told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                if not is_told and not _has_comment(lines, node.lineno):
                    yield node.lineno


def _bounds(call: ast.Call) -> Iterator[ast.expr]:
    yield from (word.value for word in call.keywords if word.arg in BOUNDS)
    if _last_name(call.func) in WAITS:
        yield from call.args


def _is_long(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and type(value.value) in (int, float) and value.value > USUAL_S


def _has_comment(lines: list[str], number: int) -> bool:
    return "#" in lines[number - 1] or lines[number - 2].lstrip().startswith("#")


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last_name(function)
    return ""


def files() -> list[Path]:
    """All tests, but neither the benchmarks nor this file, which shows what it refuses."""
    return [
        path for path in tree.python_files("tests") if path.parts[1] != "bench" and path.name != Path(__file__).name
    ]


def test_a_test_accepts_one_outcome() -> None:
    found = [
        f"{path}:{line}" for path in files() if str(path) not in SEVERAL_OUTCOMES for line in several_outcomes(path)
    ]
    assert found == []


def test_every_exception_is_still_needed() -> None:
    assert [name for name in SEVERAL_OUTCOMES if not list(several_outcomes(Path(name)))] == []
    assert [name for name in LONG_WAITS if not list(long_waits(Path(name)))] == []


def test_a_long_wait_has_a_reason_beside_it() -> None:
    found = [f"{path}:{line}" for path in files() if str(path) not in LONG_WAITS for line in long_waits(path)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "assert done.code in (0, 125)",
        "assert command.returncode in {0, 125}, said",
        "assert process.wait(2) in [0, 1]",
        "assert exit_status(terminal) in (0, 1)",
        "assert done.code in ACCEPTED",
        "assert ran.exit in INTERRUPTED[shell]",
        "assert done.code != 0",
        "assert waiting.wait(2) != 0, said",
    ],
)
def test_several_accepted_statuses_are_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(several_outcomes(Path("any.py")))) == 1


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("process.wait(20)", 1),
        ("process.wait(2)", 0),
        ("process.wait(20)  # a build", 0),
        ("wait_until(holds, 'it holds', 60.0)", 1),
        ("command.communicate(timeout=20)", 1),
        ("wait_until(holds, 'it holds', PATIENCE_S)", 0),
        ("LATE_S = 20.0", 1),
        ("LATE_S = 20.0  # of a build", 0),
        ('LATE_S = 20.0\n"""Of a build."""', 0),
    ],
)
def test_a_long_wait_without_a_reason_is_found(source: str, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    monkeypatch.setattr(tree, "text", lambda path: source)
    assert len(list(long_waits(Path("any.py")))) == found
