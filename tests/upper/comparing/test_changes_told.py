"""What is told of single changes, and what is none."""

import os
import stat
from pathlib import Path

import pytest

from tests.linux.test_deep import make_levels
from tests.upper.comparing.overlays import Layered
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper.comparing import alike
from waypoint.upper.comparing.differing import EntryChange, changes
from waypoint.upper.comparing.stack import Stack, opened_stacks
from waypoint.upper.layout import upper_of

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]


def told(found: list[EntryChange]) -> list[tuple[str, str]]:
    return [(change.how.value, os.fsdecode(change.path)) for change in found]


def test_each_kind_of_change_is_told_as_what_it_is(ground: Layered) -> None:
    for name in ("changed", "gone", "link", "mode", "owner", "same", "touched", "folder/inside"):
        (ground.base / name).parent.mkdir(exist_ok=True)
        (ground.base / name).write_text("content")
    for name in ("moved/inside", "emptied/inside"):
        (ground.base / name).parent.mkdir()
        (ground.base / name).write_text("content")
    with ground.mounted("now") as root:
        (root / "changed").write_text("CONTENT")
        (root / "gone").unlink()
        (root / "link").unlink()
        (root / "link").symlink_to("changed")
        (root / "mode").chmod(0o600)
        os.chown(root / "owner", 7, 8)
        (root / "same").open("ab").close()
        (root / "same").chmod(0o600)
        (root / "same").chmod(0o644)
        os.utime(root / "touched", (1, 1))
        (root / "folder/new").mkdir()
        (root / "moved").rename(root / "elsewhere")
        (root / "elsewhere/inside").write_text("else")
        (root / "emptied/inside").unlink()
        (root / "emptied").rmdir()
        (root / "emptied").mkdir()
    found = ground.told(None, "now")
    assert told(found) == [
        ("changed", "/changed"),
        ("added", "/elsewhere"),
        ("changed", "/elsewhere/inside"),
        ("removed", "/emptied/inside"),
        ("added", "/folder/new"),
        ("removed", "/gone"),
        ("retyped", "/link"),
        ("metadata", "/mode"),
        ("removed", "/moved"),
        ("metadata", "/owner"),
    ]
    by_path = {change.path: change for change in found}
    assert by_path[b"/elsewhere"].source == b"/moved"
    assert by_path[b"/gone"].was is not None
    assert by_path[b"/gone"].now is None
    assert (by_path[b"/owner"].now or os.stat("/")).st_uid == 7


def test_content_decides_where_the_times_say_nothing(ground: Layered, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alike", "unlike"):
        (ground.base / name).write_text("one")
    with ground.mounted("now") as root:
        for name, text in (("alike", "one"), ("unlike", "two")):
            facts = (root / name).stat()
            (root / name).write_text(text)
            os.utime(root / name, ns=(facts.st_atime_ns, facts.st_mtime_ns) if name == "unlike" else (5, 5))
    assert told(ground.told(None, "now")) == [("changed", "/unlike")]
    monkeypatch.setattr(alike, "MOST_READ", 2)  # of larger files the time of change decides
    assert told(ground.told(None, "now")) == [("changed", "/alike")]


def test_what_belongs_to_a_session_or_lies_in_another_mount_is_left_out(ground: Layered) -> None:
    tree = ground.corner / "now"
    upper = Path(upper_of(str(tree)))
    for name in ("run/waypoint/nonce", ".waypoint/x", "run/lock/x", "home/hidden", "homes/kept/x", "run/mine", "etc/x"):
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        (upper / name).write_text("session's")
    for name in ("run/mine", "homes/kept/x", "home/u/f"):
        (ground.base / name).parent.mkdir(parents=True, exist_ok=True)
        (ground.base / name).write_text("the machine's")
    home = Path(upper_of(str(tree), "/home"))
    (home / "u").mkdir(parents=True)
    (home / "u/f").write_text("changed")
    with opened_stacks(str(tree), str(ground.base), frozenset({"/homes/kept"})) as stacks:
        found = [change for stack in stacks for change in changes(stack)]
        only = [change for stack in stacks for change in changes(stack, ["/home/u", "/etc/x"])]
    assert told(found) == [
        ("added", "/etc"),
        ("added", "/etc/x"),
        ("added", "/homes/kept/x"),
        ("added", "/run/mine"),
        ("changed", "/home/u/f"),
    ]
    assert told(only) == [("added", "/etc/x"), ("changed", "/home/u/f")]


def test_a_link_in_the_place_of_a_folder_leads_nowhere(ground: Layered) -> None:
    (ground.base / "etc").mkdir()
    (ground.base / "etc/passwd").write_text("x")
    (ground.base / "a").symlink_to("etc")
    upper = ground.upper("now")
    (upper / "a").mkdir(parents=True)
    (upper / "a/passwd").write_text("y")
    (upper / "etc").symlink_to("/")
    assert told(ground.told(None, "now")) == [("retyped", "/a"), ("added", "/a/passwd"), ("retyped", "/etc")]


def test_deep_trees_and_odd_things_are_told(ground: Layered) -> None:
    upper = ground.upper("now")
    upper.mkdir(parents=True)
    make_levels(upper, 300, "deep")
    os.mkfifo(upper / "fifo")
    os.mknod(upper / "device", stat.S_IFCHR, os.makedev(1, 3))
    (upper / os.fsdecode(b"\x1b[31m\n\xff")).touch()
    found = ground.told(None, "now")
    assert [change.path for change in found if not change.path.startswith(b"/deep")] == [
        b"/\x1b[31m\n\xff",
        b"/device",
        b"/fifo",
    ]
    assert max(change.path.count(b"/") for change in found) == 301


def test_a_tree_that_changes_meanwhile_is_read_to_its_end(ground: Layered) -> None:
    upper = ground.upper("now")
    for name in ("a/x", "b/x", "c/x"):
        (upper / name).parent.mkdir(parents=True)
        (upper / name).touch()
    with open_folder(upper) as above, open_folder(ground.base) as below:
        found = changes(Stack(above, below))
        assert next(found).path == b"/a"
        (upper / "b").rename(upper / "was")
        (upper / "b").symlink_to("/etc")
        (upper / "c/x").unlink()
        assert [change.path for change in found] == [b"/a/x", b"/b", b"/c"]
