"""Habits that the linter has no rule for. Exceptions are named with their reasons; one no longer needed fails."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.repo import tree

Finder = Callable[[Path], Iterator[int]]

SLEEPS: dict[str, str] = {
    "waypoint/service/session_hooks.py": "a hook that takes too long is killed, and when is what it waits for",
    "tests/workloads/mock_models.py": "a model that thinks: its answer comes slowly",
    "waypoint/linux/tty/unblocking.py": "the time that a call may take is what it measures",
    "waypoint/daemon/lifetime.py": "no event tells that a client that has connected is about to ask",
    "waypoint/linux/tasks/cgroups.py": "the kernel holds notices of cgroup.events back for 10 ms",
    "waypoint/linux/net/rtnetlink.py": "before Linux 6.8 nobody can wait for an interface to carry packets",
    "waypoint/linux/storage/btrfs.py": "before Linux 6.13 nothing tells that a deleted subvolume's space is free",
    "waypoint/linux/tasks/lock_holder.py": "no event tells that whoever has just taken a lock has written its pid",
    "waypoint/processes/freeze.py": "a vfork ends without an event that somebody else could wait for",
    "waypoint/session/birth/start_again.py": "no event tells a stranger that a program runs, or listens",
    "waypoint/terminal/exec/ending.py": "a timeout is nothing but time",
    "waypoint/terminal/exec/signals.py": "no event tells a stranger that a process has come to rest",
    "waypoint/terminal/inside/spool.py": "no event tells that somebody has come to wait in the open of a FIFO",
    "waypoint/service/background/host_watch.py": "nothing tells that a swarm of mounts is over",
    "waypoint/launch/ground/places.py": "systemd moves a process into a scope without an event for it",
    "tests/bench/session.py": "what is counted there is what happens in a time of rest",
    "tests/session/test_outages.py": "the distance of two kills, and the age of a daemon, are nothing but time",
    "tests/waiting.py": "the one place where tests ask again and again, with a deadline",
}
"""Files that may sleep. Everywhere else one waits for the event, with a deadline."""

READS_ENVIRONMENT: dict[str, str] = {
    "waypoint/daemon/main.py": "a program: hands what the supervisor gave it on to the next supervisor",
    "waypoint/daemon/supervisor.py": "a program: passes on to the daemon the little that it may know of its caller",
    "waypoint/setup/trials.py": "a program: what it tries is the CRIU that the daemon was told to use",
    "waypoint/client/address.py": "the SDK means the same home and branch as the command line if none is named",
}
"""Files outside cli/ that may read the environment."""

TOUCHES_KERNEL: dict[str, str] = {}
"""Files outside waypoint/linux that may use ctypes, ioctl or /proc."""

HOLDS_IN_LOOP: dict[str, str] = {"waypoint/session/live/resources.py": "it has a thread do what comes at the end"}
"""Files in which a coroutine may hold a capture by `Captures.hold`."""

SEVERAL_OUTCOMES: dict[str, str] = {
    "tests/session/test_exec_signals.py": "zsh says one of two of what was interrupted, by where the signal meets it",
    "tests/daemon/test_fuzz.py": "garbage gets any answer that the protocol knows",
}
"""Files with tests that accept one of several exit statuses."""

STATUSES = {"code", "returncode", "exit", "exitstatus", "exit_status", "status", "wait"}


def silent_handlers(path: Path) -> Iterator[int]:
    """`except X: pass`: say `contextlib.suppress(X)`, with a comment why it is safe."""
    for node in ast.walk(tree.parsed(path)):
        if isinstance(node, ast.ExceptHandler) and all(map(_is_nothing, node.body)):
            yield node.lineno


def _is_nothing(step: ast.stmt) -> bool:
    return isinstance(step, ast.Pass) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))


def sleeps(path: Path) -> Iterator[int]:
    """A sleep of any length but zero, which only yields to others."""
    for call, name in tree.calls(tree.parsed(path)):
        length = call.args[0] if call.args else None
        is_zero = isinstance(length, ast.Constant) and length.value == 0
        if name.rpartition(".")[2] == "sleep" and not is_zero:
            yield call.lineno


def environment_reads(path: Path) -> Iterator[int]:
    for node in ast.walk(tree.parsed(path)):
        match node:
            case ast.Attribute() if ast.unparse(node) in {"os.environ", "os.environb", "os.getenv"}:
                yield node.lineno
            case ast.ImportFrom(module="os", names=names) if {a.name for a in names} & {
                "environ",
                "environb",
                "getenv",
            }:
                yield node.lineno


def kernel_touches(path: Path) -> Iterator[int]:
    """ctypes, ioctl and paths of this machine's /proc; not a session's (`f"{root}/proc"`), not what docstrings say."""
    module = tree.parsed(path)
    spoken = tree.docstrings(module) | tree.continuations(module)
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names) if any(alias.name.split(".")[0] == "ctypes" for alias in names):
                yield node.lineno
            case ast.ImportFrom(module="ctypes"):
                yield node.lineno
            case ast.Attribute(attr="ioctl"):
                yield node.lineno
            case ast.Constant(value=str() as text) if text.startswith("/proc/") and node not in spoken:
                yield node.lineno


def holds_in_the_loop(path: Path) -> Iterator[int]:
    """A coroutine with a capture held: at the end a tree may be removed, so `holding` is for the event loop."""
    for coroutine in ast.walk(tree.parsed(path)):
        if isinstance(coroutine, ast.AsyncFunctionDef):
            for call, name in tree.calls(coroutine):
                if name.endswith("captures.hold"):
                    yield call.lineno


def several_outcomes(path: Path) -> Iterator[int]:
    """`code in (0, 125)`, or `code in SOMETHING`: then a success and a failure look the same to the test. `not in` says
    what is refused.
    """
    for node in ast.walk(tree.parsed(path)):
        match node:
            case ast.Compare(left=left, ops=[ast.In()], comparators=[accepted]) if _last_name(left) in STATUSES:
                if not isinstance(accepted, ast.Tuple | ast.Set | ast.List) or len(accepted.elts) > 1:
                    yield node.lineno


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last_name(function)
    return ""


def found(finder: Finder, paths: list[Path], excused: dict[str, str]) -> list[str]:
    return [f"{path}:{line}" for path in paths if str(path) not in excused for line in finder(path)]


def unneeded(finder: Finder, excused: dict[str, str]) -> list[str]:
    return [name for name in excused if not list(finder(Path(name)))]


def test_no_exception_is_passed_over_in_silence() -> None:
    assert found(silent_handlers, list(tree.python_files()), {}) == []


def test_nothing_sleeps_where_it_could_wait() -> None:
    assert found(sleeps, list(tree.python_files()), SLEEPS) == []


def test_only_the_command_line_reads_the_environment() -> None:
    paths = [path for path in tree.python_files(*tree.CODE) if path.parts[:2] != ("waypoint", "cli")]
    assert found(environment_reads, paths, READS_ENVIRONMENT) == []


def test_only_one_room_touches_the_kernel() -> None:
    paths = [path for path in tree.python_files(*tree.CODE) if path.parts[:2] != ("waypoint", "linux")]
    assert found(kernel_touches, paths, TOUCHES_KERNEL) == []


def test_no_coroutine_removes_what_was_held() -> None:
    assert found(holds_in_the_loop, list(tree.python_files(*tree.CODE)), HOLDS_IN_LOOP) == []


def test_a_test_accepts_one_outcome() -> None:
    paths = [path for path in tree.python_files("tests") if path.parts[1] != "bench"]
    assert found(several_outcomes, paths, SEVERAL_OUTCOMES) == []


@pytest.mark.parametrize(
    ("finder", "excused"),
    [
        (sleeps, SLEEPS),
        (environment_reads, READS_ENVIRONMENT),
        (kernel_touches, TOUCHES_KERNEL),
        (holds_in_the_loop, HOLDS_IN_LOOP),
        (several_outcomes, SEVERAL_OUTCOMES),
    ],
    ids=["sleeps", "environment", "kernel", "holds", "outcomes"],
)
def test_every_exception_is_still_needed(finder: Finder, excused: dict[str, str]) -> None:
    assert unneeded(finder, excused) == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(
        "|".join(rf"\b{word}\b" for word in ("TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"))
    )
    lines = [
        f"{path}:{number}"
        for path in tree.files()
        if path.name != "LICENSE"
        for number, line in enumerate(tree.text(path).splitlines(), 1)
        if later.search(line)
    ]
    assert lines == []


@pytest.mark.parametrize(
    ("finder", "source"),
    [
        (silent_handlers, "try:\n    f()\nexcept OSError:\n    pass"),
        (silent_handlers, "try:\n    f()\nexcept:\n    ..."),
        (sleeps, "time.sleep(0.1)"),
        (sleeps, "await asyncio.sleep(delay)"),
        (environment_reads, "x = os.environ.get('A')"),
        (environment_reads, "from os import environ"),
        (holds_in_the_loop, "async def f():\n    with resources.captures.hold(one):\n        await g()"),
        (several_outcomes, "assert process.wait(2) in (0, 125)"),
        (several_outcomes, "assert done.code in ACCEPTED"),
        (kernel_touches, "import ctypes.util"),
        (kernel_touches, "from ctypes import CDLL"),
        (kernel_touches, "fcntl.ioctl(0, 1)"),
        (kernel_touches, "open(f'/proc/{pid}/stat')"),
    ],
)
def test_each_habit_is_recognised(finder: Finder, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(finder(Path("any.py")))) == 1


@pytest.mark.parametrize(
    "source", ['"""About /proc."""', "await asyncio.sleep(0)", "f'{root}/proc/{name}'", "x.code in (0,)"]
)
def test_what_is_fine_is_not_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert [line for finder in (sleeps, kernel_touches, several_outcomes) for line in finder(Path("any.py"))] == []
