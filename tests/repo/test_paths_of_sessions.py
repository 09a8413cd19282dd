"""Nothing outside of one module opens a path that a session may have made: linux/storage/beneath.py."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.repo import tree

BENEATH = Path("waypoint/linux/storage/beneath.py")
FOLDERS = ("merged", "views.wanted", "views.present", "present_upper", "wanted_upper")
"""How folders are named whose content is a session's; besides, what `upper_of` returns."""

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
            case ast.JoinedStr(values=[ast.Constant(value="/proc/"), _, ast.Constant(value=str(rest))]):
                if rest.startswith(("/root", "/cwd")) and rest not in ("/root", "/cwd"):
                    yield f"{path}:{node.lineno}: a path below another process's root"


def texts(path: Path) -> Iterator[str]:
    """Paths put together from a folder whose content is a session's: f"{merged}/proc", Path(upper_of(tree)) / "run"."""
    for node in ast.walk(tree.parsed(path)):
        match node:
            case ast.JoinedStr(values=[ast.FormattedValue(value=first), _, *_]) if is_a_sessions(first):
                yield f"{path}:{node.lineno}: {ast.unparse(node)}"
            case ast.BinOp(left=left, op=ast.Div() | ast.Add()) if is_a_sessions(left):
                yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def is_a_sessions(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="Path"), args=[one]):
            return is_a_sessions(one)
        case ast.Call(func=called):
            return ast.unparse(called).rpartition(".")[2] == "upper_of"
    text = ast.unparse(node)
    return any(text == name or text.endswith(f".{name}") for name in FOLDERS)


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
    ],
)
def test_such_a_path_is_seen(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(texts(Path("waypoint/trial.py")))) == 1


@pytest.mark.parametrize("source", ['f"/proc/{pid}/root/dev/shm"', 'libc.syscall("openat2", 3)'])
def test_another_opener_is_seen(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "parsed", lambda path: ast.parse(source))
    assert len(list(openers(Path("waypoint/trial.py")))) == 1
