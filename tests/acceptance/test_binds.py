"""`shell --bind`: files and folders of the host that a session shares with it."""

from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, refused, session
from tests.collecting import collecting
from tests.homes import Home

pytestmark = pytest.mark.privileged


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    tmp_path.chmod(0o777)
    (tmp_path / "file").write_text("of the host\n")
    (tmp_path / "file").chmod(0o666)
    return tmp_path


def test_changes_in_a_bound_folder_are_visible_on_both_sides(home: Home, person: Person, shared: Path) -> None:
    with session(home, person.name, "--bind", f"{shared}:/shared/here") as branch:
        assert inside(home, branch, "cat /shared/here/file") == "of the host\n"
        inside(home, branch, "echo from inside >>/shared/here/file; touch /shared/here/made; rm -f /shared/here/gone")
        assert (shared / "file").read_text() == "of the host\nfrom inside\n"
        (shared / "later").write_text("and back\n")
        assert inside(home, branch, "cat /shared/here/later") == "and back\n"
    assert (shared / "made").exists()  # discarding the session keeps the bound folder
    assert not Path("/shared").exists()


def test_files_can_be_bound_several_times_and_read_only(home: Home, shared: Path) -> None:
    binds = [f"{shared}/file:/etc/hostname", f"{shared}/file:/opt/new/read-only:ro", f"{shared}:/mnt:ro"]
    with session(home, "root", *(word for bind in binds for word in ("--bind", bind))) as branch:
        assert inside(home, branch, "cat /etc/hostname /opt/new/read-only /mnt/file") == "of the host\n" * 3
        inside(home, branch, "echo changed >/etc/hostname")
        for attempt in ("echo x >/opt/new/read-only", "touch /mnt/x", "rm /mnt/file", "mount -o remount,rw,bind /mnt"):
            assert home.cli("exec", "-b", branch, "--", attempt).code != 0
    assert (shared / "file").read_text() == "changed\n"
    assert Path("/etc/hostname").read_text() != "changed\n"
    assert [path.name for path in shared.iterdir()] == ["file"]


def test_a_branch_keeps_its_binds(home: Home, shared: Path) -> None:
    home.must("shell", "bound", "-d", "--bind", f"{shared}:/mnt")
    inside(home, "bound", "echo kept >/opt/kept")
    home.must("stop", "bound")
    home.must("shell", "bound", "-d")
    assert inside(home, "bound", "cat /mnt/file /opt/kept") == "of the host\nkept\n"
    home.must("stop", "bound")
    (shared / "file").rename(shared / "moved")
    shared.rename(shared.with_name("elsewhere"))
    done = home.cli("shell", "bound", "-d")
    assert done.code != 0
    assert str(shared) in done.stderr
    shared.with_name("elsewhere").rename(shared)


def test_binds_over_system_folders_and_malformed_binds_are_refused(home: Home, shared: Path) -> None:
    with collecting() as row:
        for target in (
            *(
                "/",
                "/proc",
                "/proc/self",
                "/sys",
                "/sys/kernel",
                "/dev",
                "/dev/null",
                "/.waypoint",
                "/.waypoint/setsid",
            ),
            *("/.waypoint/setsid", "/run/waypoint", "/run/waypoint/go", "//", "/../..", "/tmp/../proc/x"),
            *("relative", "./x", ""),
        ):
            with row(target):
                assert "bind" in refused(home, "--bind", f"{shared}:{target}")
        for bind in ("", ":", "/tmp", "/no/such/thing:/mnt", "/tmp:/mnt:rw", "/tmp:/mnt:ro:x", ":/mnt"):
            with row(bind):
                said = refused(home, "--bind", bind)
                assert "bind" in said
                assert "next: " in said


def test_a_bind_target_behind_a_link_of_the_session_changes_nothing_outside(
    home: Home, shared: Path, tmp_path: Path
) -> None:
    with session(home, "root") as branch:
        inside(home, branch, f"ln -s {tmp_path} /opt/link; ln -s / /opt/top")
        home.must("stop", branch)
        for target in ("/opt/link/x", "/opt/link", "/opt/top/etc/waypoint-was-here"):
            done = home.cli("shell", branch, "-d", "--bind", f"{shared}:{target}")
            assert done.code != 0
            assert "bind" in done.stderr or "link" in done.stderr
    assert not Path("/etc/waypoint-was-here").exists()
    assert not (tmp_path / "x").exists()
