"""Rules of style that the linter does not have. Each exception has a reason; an unneeded exception fails."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.repo import tree

Finder = Callable[[Path], Iterator[int]]

SLEEPS: dict[str, str] = {
    "waypoint/agents/mcp/server.py": "tells at most twice a second how a call goes on",
    "waypoint/agents/mcp/http.py": "uvicorn has no event for a signal",
    "waypoint/service/session_hooks.py": "kills a hook that takes too long",
    "tests/workloads/mock_models.py": "imitates a model that answers slowly",
    "waypoint/linux/tty/unblocking.py": "measures how long a call takes",
    "waypoint/daemon/http/telling.py": "amounts of work change too often to be events",
    "waypoint/daemon/lifetime.py": "no event for a connected client that is about to send a request",
    "waypoint/linux/tasks/process_groups.py": "no event for a process of others that stops",
    "waypoint/linux/tasks/cgroups.py": "the kernel holds notices of cgroup.events back for 10 ms",
    "waypoint/linux/net/rtnetlink.py": "before Linux 6.8 no event for an interface that carries packets",
    "waypoint/linux/storage/btrfs.py": "before Linux 6.13 no event for the freed space of a deleted subvolume",
    "waypoint/linux/tasks/lock_holder.py": "no event for a lock's holder writing its pid",
    "waypoint/processes/freeze.py": "no event for the end of another process's vfork",
    "waypoint/processes/refusals.py": "no event for the end of another process's state",
    "waypoint/session/birth/start_again.py": "no event for a program of others that runs or listens",
    "waypoint/terminal/exec/ending.py": "a timeout",
    "waypoint/terminal/exec/signals.py": "no event for a process of others that comes to rest",
    "waypoint/terminal/inside/spool.py": "no event for a process that waits in the open of a FIFO",
    "waypoint/service/background/host_watch.py": "no event for the end of a series of mounts",
    "waypoint/launch/ground/places.py": "systemd moves a process into a scope without an event for it",
    "tests/bench/session.py": "counts what happens during a rest",
    "tests/session/test_outages.py": "the time between two kills, and the age of a daemon",
    "waypoint/capture/taking.py": "programs that a killed CRIU has hit end within this time",
    "tests/acceptance/busy_program.py": "runs in a session: works slowly, so that checkpoints come in its middle",
    "tests/acceptance/call_waiter.py": "runs in a session: no event for a thread that waits in a system call",
    "tests/waiting.py": "the one place where tests poll, with a deadline",
}
"""Files that may sleep. All others wait for an event, with a deadline."""

READS_ENVIRONMENT: dict[str, str] = {
    "waypoint/daemon/main.py": "a program: passes the supervisor's variables on to the next supervisor",
    "waypoint/daemon/supervisor.py": "a program: passes a few variables of its caller on to the daemon",
    "waypoint/setup/trials.py": "a program: tries the CRIU that the daemon was told to use",
    "waypoint/agents/plugin/hooks/hook.py": "a program: agents start it, in and outside of sessions",
    "waypoint/client/address.py": "the SDK has the same default home and branch as the command line",
}
"""Files outside cli/ that may read the environment."""

TOUCHES_KERNEL: dict[str, str] = {}
"""Files outside waypoint/linux that may use ctypes, ioctl or /proc."""

HOLDS_IN_LOOP: dict[str, str] = {}
"""Files in which a coroutine may hold a capture by `Captures.hold`."""

SIGNALS_BY_NUMBER: dict[str, str] = {
    "shellwrap/proxy.py": "itself",
    "waypoint/egress/pasta.py": "its child, and the pasta that it has just started",
    "waypoint/launch/supervise.py": "its child, which was not reaped yet",
    "waypoint/linux/tasks/ptrace.py": "a task that it traces",
    "waypoint/setup/host_probes.py": "its child, which was not reaped yet",
}
"""Files that may send a signal to a number, each with the process. All others use waypoint/linux/tasks/signals.py."""

SEVERAL_OUTCOMES: dict[str, str] = {
    "tests/session/test_exec_signals.py": "zsh reports one of two statuses, depending on where the signal arrives",
    "tests/daemon/test_fuzz.py": "garbage gets any answer that the protocol knows",
}
"""Files with tests that accept one of several exit statuses."""

STATUSES = {"code", "returncode", "exit", "exitstatus", "exit_status", "status", "wait"}


def silent_handlers(path: Path) -> Iterator[int]:
    """Yield each `except X: pass`. Write `contextlib.suppress(X)`, with a comment why it is safe."""
    for node in ast.walk(tree.parsed(path)):
        if isinstance(node, ast.ExceptHandler) and all(map(_is_nothing, node.body)):
            yield node.lineno


def _is_nothing(step: ast.stmt) -> bool:
    return isinstance(step, ast.Pass) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))


def sleeps(path: Path) -> Iterator[int]:
    """Yield sleeps, except those of length zero, which only yield the processor."""
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
    """Yield uses of ctypes, ioctl and the machine's /proc (not a session's, `f"{root}/proc"`), except in docstrings."""
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
    """Yield coroutines that call `captures.hold`: its end may remove a tree, which blocks. They must use `holding`."""
    for coroutine in ast.walk(tree.parsed(path)):
        if isinstance(coroutine, ast.AsyncFunctionDef):
            for call, name in tree.calls(coroutine):
                if name.endswith("captures.hold"):
                    yield call.lineno


def signals_by_number(path: Path) -> Iterator[int]:
    for call, name in tree.calls(tree.parsed(path)):
        if name in ("os.kill", "os.killpg"):
            yield call.lineno


def several_outcomes(path: Path) -> Iterator[int]:
    """Yield tests such as `code in (0, 125)` or `code in SOMETHING`, which accept both success and failure."""
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


def test_no_exception_is_ignored_silently() -> None:
    assert found(silent_handlers, list(tree.python_files()), {}) == []


def test_nothing_sleeps_instead_of_waiting_for_an_event() -> None:
    assert found(sleeps, list(tree.python_files()), SLEEPS) == []


def test_only_the_command_line_reads_the_environment() -> None:
    paths = [path for path in tree.python_files(*tree.CODE) if path.parts[:2] != ("waypoint", "cli")]
    assert found(environment_reads, paths, READS_ENVIRONMENT) == []


def test_only_waypoint_linux_calls_the_kernel() -> None:
    paths = [path for path in tree.python_files(*tree.CODE) if path.parts[:2] != ("waypoint", "linux")]
    assert found(kernel_touches, paths, TOUCHES_KERNEL) == []


def test_no_coroutine_calls_captures_hold() -> None:
    assert found(holds_in_the_loop, list(tree.python_files(*tree.CODE)), HOLDS_IN_LOOP) == []


def test_signals_go_to_checked_processes() -> None:
    """The number of a process or of a group may meanwhile belong to another process of the machine."""
    assert found(signals_by_number, list(tree.python_files(*tree.CODE)), SIGNALS_BY_NUMBER) == []


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
        (signals_by_number, SIGNALS_BY_NUMBER),
        (several_outcomes, SEVERAL_OUTCOMES),
    ],
    ids=["sleeps", "environment", "kernel", "holds", "signals", "outcomes"],
)
def test_every_exception_is_still_needed(finder: Finder, excused: dict[str, str]) -> None:
    assert unneeded(finder, excused) == []


def test_no_file_has_a_note_for_later() -> None:
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
        (signals_by_number, "os.killpg(group, 9)"),
        (several_outcomes, "assert process.wait(2) in (0, 125)"),
        (several_outcomes, "assert done.code in ACCEPTED"),
        (kernel_touches, "import ctypes.util"),
        (kernel_touches, "from ctypes import CDLL"),
        (kernel_touches, "fcntl.ioctl(0, 1)"),
        (kernel_touches, "open(f'/proc/{pid}/stat')"),
    ],
)
def test_each_rule_finds_its_violation(finder: Finder, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(finder(Path("any.py")))) == 1


@pytest.mark.parametrize(
    "source", ['"""About /proc."""', "await asyncio.sleep(0)", "f'{root}/proc/{name}'", "x.code in (0,)"]
)
def test_allowed_code_is_not_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert [line for finder in (sleeps, kernel_touches, several_outcomes) for line in finder(Path("any.py"))] == []
