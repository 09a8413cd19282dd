"""`plan_base` decides which of the host's mounts get an overlay in a session; tested with recorded mount tables."""

from pathlib import Path

from waypoint.launch.ground.base import BasePlan, plan_base
from waypoint.linux.storage.mounts import parse_mounts
from waypoint.model.conditions import text_of

# A Debian 13 desktop: separate /home and /tmp, a USB stick, a network share, a snap, the usual kernel file systems.
TABLE = rb"""
22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
23 28 0:21 / /proc rw,nosuid shared:13 - proc proc rw
24 28 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=8G
25 24 0:22 / /dev/pts rw shared:3 - devpts devpts rw
26 28 0:23 / /run rw shared:5 - tmpfs tmpfs rw,size=1G
28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:6 / /sys/kernel/security rw shared:8 - securityfs securityfs rw
40 28 254:2 / /home rw,relatime shared:30 - ext4 /dev/vda2 rw
41 28 0:40 / /tmp rw,nosuid shared:31 - tmpfs tmpfs rw
42 40 0:44 / /home/ann/nas rw shared:32 - nfs4 nas:/x rw
43 28 7:1 / /snap/core/1 ro,nodev shared:33 - squashfs /dev/loop1 ro
44 28 8:1 / /media/ann/USB\040STICK rw shared:34 - vfat /dev/sdb1 rw
45 28 0:50 / /proc/sys/fs/binfmt_misc rw shared:14 - autofs systemd-1 rw
46 28 254:1 /var/log /srv/logs rw shared:1 - ext4 /dev/vda1 rw
47 26 0:51 / /run/user/1000 rw shared:35 - tmpfs tmpfs rw
48 28 254:9 / /var/lib/waypoint/pool rw shared:36 - btrfs /dev/loop9 rw
49 28 254:3 / /data ro,relatime shared:37 - xfs /dev/vdc rw
"""


def plan(base: str = "/", table: bytes = TABLE) -> tuple[list[str], str]:
    found = plan_base(base, parse_mounts(table), hidden=("/var/lib/waypoint",), check=lambda _mount: "")
    return found.overlays, "\n".join(map(text_of, found.left_out))


def test_local_writable_mounts_get_overlays_and_others_are_left_out_with_a_reason() -> None:
    targets, left_out = plan()
    assert targets == ["/", "/home", "/srv/logs", "/tmp"]
    for line in (
        "/home/ann/nas (nfs4: not a local file system)",
        "/snap/core/1 (squashfs",
        "/data (xfs: read-only)",
        "/media/ann/USB STICK (vfat: overlayfs does not accept",
    ):
        assert line in left_out
    assert not any(name in left_out for name in ("/proc", "/sys", "/dev", "/run", "/var/lib/waypoint"))
    found = plan_base(
        "/", parse_mounts(TABLE), hidden=(), check=lambda mount: "a file" * (mount.mount_point == "/srv/logs")
    )
    assert "/srv/logs (ext4: a file)" in map(text_of, found.left_out)


def test_a_later_mount_hides_earlier_mounts_at_and_below_its_mount_point() -> None:
    table = TABLE.replace(b"- vfat", b"- ext4") + b"60 28 0:60 / /media rw shared:60 - tmpfs tmpfs rw\n"
    targets, left_out = plan(table=table + b"62 40 0:62 / /home rw shared:62 - tmpfs tmpfs rw\n")
    assert targets.count("/home") == 1
    assert "/media" in targets
    assert "/media/ann/USB STICK" not in targets
    assert "USB" not in left_out


def test_a_base_other_than_the_root_gets_one_overlay() -> None:
    targets, left_out = plan("/home")
    assert targets == ["/"]
    assert left_out == "/home/ann/nas (nfs4: mounted below the base)"


def test_a_mount_below_a_left_out_mount_is_left_out() -> None:
    table = TABLE + b"61 49 0:61 / /data/own rw shared:61 - tmpfs tmpfs rw\n"
    targets, left_out = plan(table=table)
    assert "/data/own" not in targets
    assert "/data/own (tmpfs: mounted below /data)" in left_out


def test_files_of_the_tree_take_precedence_over_a_later_mount(tmp_path: Path) -> None:
    for made in ("m0/upper/home/ann", "m0/upper/tmp", "m%2Fsrv%2Flogs/upper"):
        (tmp_path / made).mkdir(parents=True)
    found = BasePlan(["/", "/home", "/home/ann", "/srv/logs", "/tmp"], []).give_way(str(tmp_path))
    assert found.overlays == ["/", "/srv/logs", "/tmp"]
    own, below = found.left_out
    assert text_of(own).startswith("/home (the session has files of its own there: ")
    assert text_of(below).startswith("/home/ann (mounted below /home: ")


def test_a_mount_point_replaced_by_a_link_or_file_is_left_out(tmp_path: Path) -> None:
    upper = tmp_path / "m0/upper"
    upper.mkdir(parents=True)
    (upper / "srv").symlink_to("/etc")
    (upper / "tmp").touch()
    found = BasePlan(["/", "/srv/logs", "/tmp"], []).give_way(str(tmp_path))
    assert found.overlays == ["/"]
    assert all("has changed its mount point" in one.detail for one in found.left_out)
