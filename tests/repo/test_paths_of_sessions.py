"""Nothing outside of one module opens a path that a session may have made: linux/storage/beneath.py."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.repo import tree

BENEATH = Path("waypoint/linux/storage/beneath.py")
NAMED_BY_OTHERS = ("base", "item.source")
FOLDERS = ("merged", "views.wanted", "views.present", "present_upper", "wanted_upper", *NAMED_BY_OTHERS)
"""How folders are named whose content is a session's, or of whoever made the base; besides, what `upper_of` returns."""

MAY_JOIN = {
    (
        "waypoint/launch/ground/start_plan.py",
        "Path(setting.base) / target.lstrip('/')",
    ): "a mount point of the machine's",
    ("waypoint/launch/ground/skeleton.py", "Path(base) / target.lstrip('/')"): "a mount point of the machine's",
    ("waypoint/capture/layers/processes.py", "f'{base}{target}'"): "a mount point of the machine's",
    ("waypoint/service/durable/applying.py", "f'{base}{target}'"): "opened without links (opened_machine)",
    ("waypoint/launch/externals.py", "os.path.isdir(item.source)"): "a bind that is a link by now is refused later",
    ("waypoint/capture/elsewhere.py", "os.path.isdir(setting.base)"): "the base itself",
    ("waypoint/session/birth/setting.py", "os.path.isdir(base)"): "the base itself, which who asks has named",
}
"""Paths that are put together from such a folder, and looked at, all the same. (Of a base that is not the machine's
root nothing but that root itself is a mount point.)"""

MAY_FOLLOW = {
    (
        "waypoint/linux/tasks/removed.py",
        "/fd/",
    ): "the very folder that the process has open, O_PATH: no path is followed",
    ("waypoint/linux/tasks/lock_holder.py", "/fd/"): "of the daemon's own kind of process; looked at alone",
    ("waypoint/linux/calls/sealed.py", "/fd/"): "this process's own",
}
"""Links of processes to their files that are opened or looked at by name."""

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

MOUNTS = {"mounts.mount": 1, "mounts.bind": 1, "mounts.remount_bind": 0, "idmapped.attach": 1}
"""Which argument of these is the mount point."""

MAY_MOUNT_AT: dict[tuple[str, str], str] = {
    ("waypoint/launch/start.py", "merged"): "a folder of Waypoint's: the session's root is what is mounted there",
    ("waypoint/launch/externals.py", "place"): "a folder of the kit's for an idmapped layer",
    ("waypoint/launch/criu.py", "_RUN"): "CRIU's own view of the host, before the session's mounts are among it",
    ("waypoint/launch/criu.py", "_TMP"): "CRIU's own view of the host",
}
"""Mount points of the launcher's that were not opened by a MountPlace."""


def openers(path: Path) -> Iterator[str]:
    """openat2, and the root of another process, from which a path would be followed."""
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
    """Paths put together from a folder whose content is a session's, as f"{merged}/proc" or Path(upper_of(tree)) /
    "run", and what looks at such a folder by its name, as os.path.isdir(base).
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
    """Whether this, behind a folder in a text, makes a path of it, and not a sentence."""
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
    """Mount points in the code of the launcher that are not names given by `with MountPlace(...).opened() as name`."""
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


def called(module: ast.Module, names: Sequence[str]) -> Iterator[str]:
    for call, name in tree.calls(module):
        if name.rpartition(".")[2] in names:
            yield f"{call.lineno}: {name}"


def code() -> list[Path]:
    return list(tree.python_files("waypoint"))


def test_one_module_opens_the_paths_of_sessions() -> None:
    assert [line for path in code() if path != BENEATH for line in openers(path)] == []
    assert len(list(openers(BENEATH))) == 1


def test_no_path_is_put_together_from_a_folder_of_a_session() -> None:
    assert [line for path in code() for line in texts(path)] == []


def test_the_launcher_mounts_on_what_it_has_opened() -> None:
    found = {
        one
        for path in code()
        if path.parts[:2] == ("waypoint", "launch") and len(path.parts) == 3
        for one in mount_points(path)
    }
    assert found == set(MAY_MOUNT_AT)


def test_what_reads_all_of_a_sessions_folder_is_called_by_threads_alone() -> None:
    """A session makes names there by the hundred thousand. A function that is handed to a thread is not called here."""
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
def test_such_a_path_is_seen(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(texts(Path("waypoint/trial.py")))) == 1


@pytest.mark.parametrize(
    "source", ['f"/proc/{pid}/root/dev/shm"', 'f"/proc/{pid}/fd/{number}"', 'libc.syscall("openat2", 3)']
)
def test_another_opener_is_seen(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(openers(Path("waypoint/trial.py")))) == 1


def test_what_the_kernel_tells_is_taken_apart_at_line_feeds_alone() -> None:
    """Processes choose names in it, in which the kernel escapes nothing else at which `splitlines` ends a line."""
    found = [path for path in tree.python_files("waypoint/linux") if ".splitlines(" in tree.text(path)]
    assert found == []
