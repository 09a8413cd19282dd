"""A capture takes the newest complete state that the shell wrote at its prompts."""

import os
from pathlib import Path

import pytest

from waypoint.capture.layers import shell
from waypoint.capture.layers.shell import LAST, MAX_BYTES, last_prompt, read_state
from waypoint.upper.layout import upper_of


def state(number: int, value: str, traps: bytes = b"") -> bytes:
    """Return a state as bash writes it, in which the variable x has this value."""
    records = f"s\0{number}\0bash\x000\0h\0\0\0hist.0\0v\0\0\0declare -- x={value}\n\0"
    return traps + b"\0" + records.encode() + b"e\0%d\0\0\0" % number


class Tree:
    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self.run = Path(upper_of(self.path)) / "run/waypoint"
        self.run.mkdir(parents=True)

    def write(self, *content: bytes) -> None:
        for name, data in zip(LAST, content, strict=True):
            (self.run / name).write_bytes(data)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def value_in(tree: Tree) -> bytes | None:
    layer = last_prompt(tree.path)
    if layer is None:
        return None
    return read_state(tree.path, layer).data.partition(b"x=")[2].partition(b"\n")[0]


def test_the_newer_state_is_taken_whatever_follows_its_end(tree: Tree) -> None:
    tree.write(state(4, "new") + b"left of an older one\0e\0" + b"2\0\0\0", state(3, "old"))
    assert value_in(tree) == b"new"
    tree.write(state(4, "old"), state(5, "new"))
    assert value_in(tree) == b"new"


def test_a_truncated_state_is_skipped_even_if_the_end_of_an_older_state_follows(tree: Tree) -> None:
    for cut in (0, 1, 9, 20, 40, -1):
        torn, before = state(4, "torn" * 20)[:cut], state(2, "before")
        tree.write(torn + before[len(torn) :], state(3, "whole"))
        assert value_in(tree) == b"whole", cut


def test_traps_are_moved_into_their_record(tree: Tree) -> None:
    tree.write(state(2, "x", b"trap -- 'echo' INT\n"), b"")
    layer = last_prompt(tree.path)
    assert layer is not None
    assert read_state(tree.path, layer).data.endswith(b"\0t\0\0\0trap -- 'echo' INT\n\0e\0\0\0\0")


def test_a_state_that_is_too_large_is_not_replaced_by_an_older_state(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "MAX_BYTES", 4096)
    tree.write(state(4, "x" * 5000), state(3, "old"))
    assert last_prompt(tree.path) is None
    assert MAX_BYTES > 1 << 20


def test_links_and_fifos_are_not_states(tree: Tree) -> None:
    (tree.run / LAST[0]).symlink_to("/etc/passwd")
    os.mkfifo(tree.run / LAST[1])
    assert last_prompt(tree.path) is None
    tree.run.rename(f"{tree.run}.aside")
    tree.run.symlink_to(f"{tree.run}.aside")
    assert last_prompt(tree.path) is None


def test_folders_instead_of_states_leak_no_descriptor(tree: Tree) -> None:
    for name in LAST:
        (tree.run / name).mkdir()
    before = os.listdir("/proc/self/fd")
    assert last_prompt(tree.path) is None
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_state_without_a_history_file_is_read(tree: Tree) -> None:
    tree.write(state(2, "x"), b"")
    layer = last_prompt(tree.path)
    assert layer is not None
    assert read_state(tree.path, layer).history is None
    (tree.run / "hist.0").write_bytes(b"echo\n")
    assert read_state(tree.path, layer).history == b"echo\n"
