"""Mounting, and reading the table of mounts."""

import errno
import os
from pathlib import Path

import pytest

from waypoint.linux.storage import mounts
from waypoint.linux.tasks import namespaces

MS_SHARED = 1 << 20
LINE = rb"36 35 98:0 /mnt1 /mnt/with\040space rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue"


def record_at(path: Path) -> mounts.MountRecord:
    return [record for record in mounts.read_mounts() if record.mount_point == str(path)][-1]


def test_a_line_of_mountinfo_is_read_field_by_field() -> None:
    assert mounts.parse_mounts(LINE + b"\n") == [
        mounts.MountRecord(
            id=36,
            parent=35,
            device=(98, 0),
            root="/mnt1",
            mount_point="/mnt/with space",
            options=("rw", "noatime"),
            optional=("master:1", "shared:7"),
            fstype="ext3",
            source="/dev/root",
            super_options=("rw", "errors=continue"),
        )
    ]


def test_odd_lines_of_mountinfo_are_read() -> None:
    empty, escaped, odd = mounts.parse_mounts(
        b"1 0 0:5 / / rw - tmpfs  rw\n"
        rb"1 0 0:5 / /a\134040\011\012\043\xff rw - t s rw,dir=/a\054b\134,x"
        b"\n1 0 0:5 / /\xff\r\x0b\x1c\x85 rw - t s rw\n"
    )
    assert (empty.optional, empty.source, empty.fstype) == ((), "", "tmpfs")
    assert escaped.mount_point == "/a\\040\t\n#\\xff", "octal escapes only, and once"
    assert escaped.super_options == ("rw", "dir=/a,b\\", "x")
    assert os.fsencode(odd.mount_point) == b"/\xff\r\x0b\x1c\x85"


def test_malformed_lines_of_mountinfo_are_refused() -> None:
    for line in (b"nonsense", LINE.replace(b" - ", b" "), b"1 0 0:5 / / - ext4 s rw", b"1 0 0:5 / / rw - x"):
        with pytest.raises(ValueError, match="not a line of mountinfo"):
            mounts.parse_mounts(line)


def test_the_mount_table_of_this_process_has_the_root() -> None:
    assert "/" in [record.mount_point for record in mounts.read_mounts()]
    assert mounts.read_mounts(os.getpid()) == mounts.read_mounts()


def test_options_longer_than_the_kernel_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="4096 bytes of options") as refused:
        mounts.mount("overlay", tmp_path, "overlay", 0, "x" * 4096)
    assert refused.value.errno == errno.E2BIG


@pytest.mark.privileged
@pytest.mark.requires("overlay")
def test_escaped_folders_of_any_name_work_in_overlay_options(corner: Path) -> None:
    for odd in ("a,b", "a:b", "a\\b", "a\\,b", "a\\\\:b=c", "a b\n\t#\"'%", os.fsdecode(b"\xff\xfe")):
        place = corner / odd
        for name in ("one", "two", "upper", "work", "merged"):
            (place / name).mkdir(parents=True)
            (place / name / f"in {name}").touch()
        lower = ":".join(mounts.escape(place / name) for name in ("one", "two"))
        upper, work = (mounts.escape(place / name) for name in ("upper", "work"))
        mounts.mount("overlay", place / "merged", "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")
        assert sorted(os.listdir(place / "merged")) == ["in one", "in two", "in upper"]
        assert record_at(place / "merged").fstype == "overlay"


@pytest.mark.privileged
def test_a_bind_mount_can_be_read_only_while_its_source_is_writable(corner: Path) -> None:
    for name in ("source", "source/below", "target", "shallow"):
        (corner / name).mkdir()
    mounts.mount("tmpfs", corner / "source/below", "tmpfs", mounts.MS_NOSUID, "mode=0700")
    (corner / "source/below/file").touch()
    mounts.bind(corner / "source", corner / "target", recursive=True)
    mounts.bind(corner / "source", corner / "shallow")
    assert os.listdir(corner / "target/below") == ["file"]
    assert os.listdir(corner / "shallow/below") == []

    mounts.remount_bind(corner / "target", mounts.MS_RDONLY)
    with pytest.raises(OSError, match="Read-only file system"):
        (corner / "target/new").touch()
    (corner / "target/below/new").touch()
    (corner / "source/new").touch()
    assert "ro" in record_at(corner / "target").options


@pytest.mark.privileged
@pytest.mark.requires("overlay")
def test_writes_to_a_covered_folder_vanish_and_its_files_stay_visible(corner: Path) -> None:
    place, link = corner / "a:b", corner / "link"
    place.mkdir()
    link.symlink_to(place)
    (place / "upper").write_text("of the folder")
    mounts.keep_writes_apart(str(link), needed=str(place / "upper"))
    assert os.listdir(place) == ["upper"]
    (place / "upper").write_text("changed")
    (place / "new").mkdir()
    for _ in range(2):  # unmount the overlay, then the tmpfs below it
        mounts.umount(place, mounts.MNT_DETACH)
    assert os.listdir(place) == ["upper"]
    assert (place / "upper").read_text() == "of the folder"


@pytest.mark.privileged
@pytest.mark.requires("overlay")
def test_a_folder_is_not_covered_if_that_hides_the_needed_file(corner: Path) -> None:
    (corner / "mounted").mkdir()
    mounts.mount("tmpfs", corner / "mounted", "tmpfs")
    (corner / "mounted/program").touch()
    mounts.keep_writes_apart(str(corner), needed=str(corner / "mounted/program"))
    assert mounts.list_mount_points_in(corner) == [str(corner / "mounted")]


@pytest.mark.privileged
@pytest.mark.requires("overlay")
def test_where_overlayfs_refuses_a_folder_a_tmpfs_covers_it(corner: Path) -> None:
    for _ in range(3):  # the kernel allows two stacked overlays
        mounts.keep_writes_apart(str(corner), needed="/")
    assert record_at(corner).fstype == "tmpfs"


@pytest.mark.privileged
def test_mount_points_with_odd_names_are_listed(corner: Path) -> None:
    (corner / "folder/in\nside").mkdir(parents=True)
    (corner / "folder+").mkdir()
    for point in ("folder", "folder+"):
        mounts.bind(corner, corner / point)
    assert mounts.list_mount_points_in(corner / "folder") == [str(corner / "folder")]
    mounts.umount(corner / "folder")
    mounts.mount("tmpfs", corner / "folder/in\nside", "tmpfs")
    assert mounts.list_mount_points_in(corner / "folder") == [str(corner / "folder/in\nside")]
    assert mounts.list_mount_points_in(corner / "other") == []


@pytest.mark.privileged
def test_unmounting_raises_ebusy_or_einval(corner: Path) -> None:
    mounts.mount("tmpfs", corner, "tmpfs")
    with (corner / "file").open("w"):
        with pytest.raises(OSError, match="Device or resource busy") as refused:
            mounts.umount(corner)
        assert (refused.value.errno, refused.value.filename) == (errno.EBUSY, str(corner))
        mounts.umount(corner, mounts.MNT_DETACH)
    with pytest.raises(OSError, match="Invalid argument"):
        mounts.umount(corner)


@pytest.mark.privileged
def test_mounts_propagate_into_a_slave_but_not_out(corner: Path) -> None:
    for name in ("shared", "slave"):
        (corner / name).mkdir()
    mounts.mount("tmpfs", corner / "shared", "tmpfs")
    mounts.mount(None, corner / "shared", None, MS_SHARED)
    for name in ("from outside", "from inside"):
        (corner / "shared" / name).mkdir()
    mounts.bind(corner / "shared", corner / "slave")
    mounts.make_slave(corner / "slave")
    mounts.mount("tmpfs", corner / "shared/from outside", "tmpfs")
    mounts.mount("tmpfs", corner / "slave/from inside", "tmpfs")
    assert len(mounts.list_mount_points_in(corner / "slave/from outside")) == 1
    assert mounts.list_mount_points_in(corner / "shared/from inside") == []
    mounts.make_private(corner / "slave")
    assert record_at(corner / "slave").optional == ()


@pytest.mark.privileged
def test_the_old_root_cannot_be_reached_after_pivot_root(corner: Path) -> None:
    (corner / "marker").touch()
    child = os.fork()
    if not child:
        try:
            namespaces.unshare(namespaces.CLONE_NEWNS)
            mounts.bind(corner, corner)
            os.chdir(corner)
            mounts.pivot_root_here()
            seen = (os.listdir("/"), os.listdir("/.."), os.getcwd())
            os._exit(0 if seen == (["marker"], ["marker"], "/") else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
