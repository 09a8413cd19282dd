"""Only linux/storage/beneath.py opens paths that a session may have made, and only model/paths.py spells them."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.repo import tree

BENEATH = Path("waypoint/linux/storage/beneath.py")
SPELLED_IN = Path("waypoint/model/paths.py")
OWN_FOLDERS = ("run/waypoint", ".waypoint/")
"""Parts of the paths of a session's own folders (paths.RUN_FOLDER, paths.OWN_FOLDER)."""

NAMED_BY_OTHERS = ("base", "item.source")
FOLDERS = ("merged", "views.wanted", "views.present", "present_upper", "wanted_upper", *NAMED_BY_OTHERS)
"""Names of variables with an untrusted folder: its content comes from a session or a base."""

MAY_JOIN = {
    (
        "waypoint/launch/ground/start_plan.py",
        "Path(setting.base) / target.lstrip('/')",
    ): "a mount point of the machine's",
    ("waypoint/launch/ground/skeleton.py", "Path(base) / target.lstrip('/')"): "a mount point of the machine's",
    ("waypoint/capture/layers/processes.py", "f'{base}{target}'"): "a mount point of the machine's",
    ("waypoint/capture/layers/base_files.py", "f'{base}{target}'"): "a mount point of the machine's",
    ("waypoint/launch/externals.py", "os.path.isdir(item.source)"): "a bind that has become a link is refused later",
    ("waypoint/session/birth/setting.py", "os.path.isdir(base)"): "the base itself, which the caller named",
}
"""Expressions that may join a path to such a folder. In a base that is not the machine's root, only the base itself
is a mount point.
"""

MAY_FOLLOW = {
    (
        "waypoint/linux/tasks/removed.py",
        "/fd/",
    ): "the folder that the process has open, O_PATH: no path is followed",
    ("waypoint/linux/tasks/procfs.py", "/fd/"): "only looked at; no path is followed",
    ("waypoint/linux/tasks/pipes.py", "/fd/"): "an unnamed pipe of a frozen process: no path is followed",
    ("waypoint/linux/tasks/lock_holder.py", "/fd/"): "of a process like the daemon; only looked at",
    ("waypoint/linux/calls/sealed.py", "/fd/"): "this process's own",
}
"""Uses of /proc/PID/fd that are allowed."""

LOOKING = (
    "open",
    "os.open",
    "os.stat",
    "os.listdir",
    "os.path.exists",
    "os.path.isdir",
    "os.path.isfile",
    "os.readlink",
)

MOUNTS = {
    "mounts.mount": 1,
    "mounts.bind": 1,
    "mounts.remount_bind": 0,
    "mounts.keep_writes_apart": 0,
    "idmapped.attach": 1,
}
"""The index of the argument with the mount point."""

MAY_MOUNT_AT: dict[tuple[str, str], str] = {
    ("waypoint/launch/start.py", "merged"): "a folder of Waypoint's, where the session's root is mounted",
    ("waypoint/launch/externals.py", "place"): "a folder of the kit's for an idmapped layer",
    ("waypoint/launch/criu.py", "_RUN"): "CRIU's own view of the host, before the session's mounts are among it",
    ("waypoint/launch/criu.py", "_TMP"): "CRIU's own view of the host",
}
"""Mount points of the launcher that are not opened by a MountPlace."""


def openers(path: Path) -> Iterator[str]:
    """Yield calls of openat2, and paths below another process's root, folder or descriptors."""
    module = tree.parsed(path)
    for node in ast.walk(module):
        match node:
            case ast.Call(args=[ast.Constant(value="openat2"), *_]):
                yield f"{path}:{node.lineno}: openat2"
            case ast.JoinedStr(values=[ast.Constant(value="/proc/"), _, ast.Constant(value=str(rest)), *_]):
                if rest.startswith(("/root/", "/cwd/")):
                    yield f"{path}:{node.lineno}: a path below another process's root"
                elif rest.startswith("/fd/") and (str(path), rest) not in MAY_FOLLOW:
                    yield f"{path}:{node.lineno}: another process's file"


def texts(path: Path) -> Iterator[str]:
    """Paths joined to an untrusted folder (`f"{merged}/proc"`, `Path(upper_of(tree)) / "run"`), and calls that look at
    such a folder by name (`os.path.isdir(base)`).
    """
    for node in ast.walk(tree.parsed(path)):
        match node:
            case ast.JoinedStr(values=[ast.FormattedValue(value=first), second, *_]) if is_a_sessions(first):
                found = is_of_a_path(second)
            case ast.BinOp(left=left, op=ast.Div() | ast.Add()):
                found = is_a_sessions(left)
            case ast.Call(func=called, args=[first, *_]):
                found = ast.unparse(called) in LOOKING and is_one_of(first, NAMED_BY_OTHERS)
            case _:
                continue
        if found and (str(path), ast.unparse(node)) not in MAY_JOIN:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def is_of_a_path(part: ast.expr) -> bool:
    """Whether this part of an f-string continues a path, not a sentence."""
    return not isinstance(part, ast.Constant) or str(part.value).startswith("/")


def is_a_sessions(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="Path"), args=[one]):
            return is_a_sessions(one)
        case ast.Call(func=called):
            return ast.unparse(called).rpartition(".")[2] == "upper_of"
    return is_one_of(node, FOLDERS)


def is_one_of(node: ast.expr, names: Sequence[str]) -> bool:
    text = ast.unparse(node)
    return any(text == name or text.endswith(f".{name}") for name in names)


def mount_points(path: Path) -> Iterator[tuple[str, str]]:
    """Mount points that are not names of `with MountPlace(...).opened() as name`."""
    module = tree.parsed(path)
    opened = {
        ast.unparse(item.optional_vars)
        for node in ast.walk(module)
        if isinstance(node, ast.With)
        for item in node.items
        if item.optional_vars is not None and ast.unparse(item.context_expr).endswith(".opened()")
    }
    for call, name in tree.calls(module):
        if name in MOUNTS and ast.unparse(call.args[MOUNTS[name]]) not in opened:
            yield str(path), ast.unparse(call.args[MOUNTS[name]])


def spelled_folders(path: Path) -> Iterator[str]:
    """Literals with a session's own folder, except docstrings."""
    module = tree.parsed(path)
    spoken = tree.docstrings(module)
    for node in ast.walk(module):
        match node:
            case ast.Constant(value=str() as text) if node not in spoken and any(one in text for one in OWN_FOLDERS):
                yield f"{path}:{node.lineno}: {text}"


def called(module: ast.Module, names: Sequence[str]) -> Iterator[str]:
    for call, name in tree.calls(module):
        if name.rpartition(".")[2] in names:
            yield f"{call.lineno}: {name}"


def code() -> list[Path]:
    """All modules; the hooks of the plugin are none: agents start them, also inside sessions."""
    return [path for path in tree.python_files("waypoint") if "plugin" not in path.parts]


def test_one_module_opens_the_paths_of_sessions() -> None:
    assert [line for path in code() if path != BENEATH for line in openers(path)] == []
    assert len(list(openers(BENEATH))) == 1


def test_no_path_is_joined_to_a_folder_of_a_session() -> None:
    assert [line for path in code() for line in texts(path)] == []


def test_the_folders_of_a_session_are_spelled_once() -> None:
    assert [line for path in code() if path != SPELLED_IN for line in spelled_folders(path)] == []


def test_the_launcher_mounts_on_opened_descriptors() -> None:
    found = {
        one
        for path in code()
        if path.parts[:2] == ("waypoint", "launch") and len(path.parts) == 3
        for one in mount_points(path)
    }
    assert found == set(MAY_MOUNT_AT)


def test_functions_that_list_a_sessions_folder_run_only_in_threads() -> None:
    """A session may put a hundred thousand files there. A call in the source would run in the event loop; to run in a
    thread, the function is passed as an argument.
    """
    slow = ("clear_folder", "clear_unread")
    assert [f"{path}:{line}" for path in code() for line in called(tree.parsed(path), slow)] == []
    assert [*called(ast.parse("ending.clear_folder(folder)"), slow)] == ["1: ending.clear_folder"]


@pytest.mark.parametrize(
    "source",
    [
        'f"{spec.merged}/proc"',
        'f"{layout.upper_of(tree)}/{RUN_FOLDER}"',
        'Path(layout.upper_of(str(tree))) / "run"',
        'merged + "/proc"',
        'f"{views.wanted}/{path}"',
        'Path(setting.base) / "etc/passwd"',
        'os.path.exists(f"{base}{loader}")',
        "open(item.source)",
    ],
)
def test_each_joined_path_is_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(texts(Path("waypoint/trial.py")))) == 1


@pytest.mark.parametrize(
    "source", ['f"/proc/{pid}/root/dev/shm"', 'f"/proc/{pid}/fd/{number}"', 'libc.syscall("openat2", 3)']
)
def test_each_opener_is_found(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(openers(Path("waypoint/trial.py")))) == 1


@pytest.mark.parametrize(
    ("source", "found"),
    [("x = 'run/waypoint/exit'", 1), ("x = f'/run/waypoint/{y}'", 1), ("'''In /run/waypoint.'''", 0)],
)
def test_each_spelling_is_found(source: str, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(spelled_folders(Path("waypoint/trial.py")))) == found
