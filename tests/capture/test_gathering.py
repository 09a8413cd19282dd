"""Copying the files of a base from folders of the machine."""

import os
import stat
from pathlib import Path

import pytest

from tests.acceptance.sessions import mounted
from waypoint.capture.storing import gathering
from waypoint.capture.storing.orders import Gather, Gathered
from waypoint.upper import copying

pytestmark = pytest.mark.privileged


def gather(*folders: tuple[Path, str], target: Path, hidden: Path, emptied: Path) -> Gathered:
    target.mkdir()
    order = Gather(
        store="",
        folders=[(str(source), place) for source, place in folders],
        target=str(target),
        hidden=[str(hidden)],
        emptied=[str(emptied)],
    )
    return gathering.gather(order, lambda done: None)


def picture(folder: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        kind = stat.S_IFMT(facts.st_mode)
        content = path.read_bytes() if kind == stat.S_IFREG else os.readlink(path) if kind == stat.S_IFLNK else b""
        found[str(path.relative_to(folder))] = (
            *(facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns),
            facts.st_nlink if kind == stat.S_IFREG else 0,
            content,
        )
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("etc/deep/er", "home/more", "tmp/inner", "secret", "empty"):
        (root / name).mkdir(parents=True)
    (root / "etc/file").write_bytes(b"content" * 5000)
    (root / "etc/file").chmod(0o4751)
    os.chown(root / "etc/deep", 4321, 4322)
    os.link(root / "etc/file", root / "etc/deep/er/again")
    os.symlink("../nowhere", root / "etc/link")
    os.mkfifo(root / "etc/fifo")
    os.setxattr(root / "etc/deep", "user.mark", b"1")
    (root / "tmp/inner/left").touch()
    (root / "secret/key").touch()
    return root


def test_files_are_copied_whole_and_mounts_have_their_place(source: Path, tmp_path: Path) -> None:
    other, target = tmp_path / "other", tmp_path / "target"
    (other / "ann").mkdir(parents=True)
    (other / "ann/file").write_text("on another disk")
    with mounted(source / "home", "-t", "tmpfs", "none"):
        (source / "home/hidden").touch()
        found = gather((source, ""), (other, "home"), target=target, hidden=source / "secret", emptied=source / "tmp")
    assert found == Gathered(devices=0, device="", left_out=0, example="")
    whole, copy = picture(source), picture(target)
    expected = {name: facts for name, facts in whole.items() if name.split("/")[0] not in ("home", "secret")}
    expected = {name: facts for name, facts in expected.items() if not name.startswith("tmp/")}
    expected |= {f"home/{name}".removesuffix("/."): facts for name, facts in picture(other).items()}
    assert copy == expected
    assert os.getxattr(target / "etc/deep", "user.mark") == b"1"


def test_what_vanishes_and_devices_are_left_out_and_counted(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mknod(source / "etc/null", 0o20666, os.makedev(1, 3))
    real = copying.copy

    def copy(one: copying.Entry, other: copying.Entry, facts: os.stat_result) -> None:
        if one.name == "link":
            os.unlink(source / "etc/link")
        real(one, other, facts)

    monkeypatch.setattr(copying, "copy", copy)
    target = tmp_path / "target"
    found = gather((source, ""), target=target, hidden=tmp_path / "no", emptied=tmp_path / "no")
    assert found == Gathered(
        devices=1, device=f"{source}/etc/null", left_out=1, example=f"{source}/etc/link: No such file or directory"
    )
    assert {"link", "null"}.isdisjoint(os.listdir(target / "etc"))
    assert (target / "tmp/inner/left").exists()


def test_a_full_disk_is_an_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    target, none = tmp_path / "disk/target", tmp_path / "no"
    with (
        mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=16k", "none"),
        pytest.raises(OSError, match="No space left"),
    ):
        gather((source, ""), target=target, hidden=none, emptied=none)
