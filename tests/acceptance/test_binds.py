"""`shell --bind`: what is shared with the machine as it is, and the machine's other mounts, which are not."""

from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, refused, session
from tests.homes import Home

pytestmark = pytest.mark.privileged


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    tmp_path.chmod(0o777)
    (tmp_path / "file").write_text("of the host\n")
    (tmp_path / "file").chmod(0o666)
    return tmp_path


def test_a_folder_that_is_bound_is_the_hosts_own(home: Home, person: Person, shared: Path) -> None:
    with session(home, person.name, "--bind", f"{shared}:/shared/here") as branch:
        assert inside(home, branch, "cat /shared/here/file") == "of the host\n"
        inside(home, branch, "echo from inside >>/shared/here/file; touch /shared/here/made; rm -f /shared/here/gone")
        assert (shared / "file").read_text() == "of the host\nfrom inside\n"
        (shared / "later").write_text("and back\n")
        assert inside(home, branch, "cat /shared/here/later") == "and back\n"
    assert (shared / "made").exists()  # thrown away was only what is not bound
    assert not Path("/shared").exists()


def test_a_file_and_several_and_read_only(home: Home, shared: Path) -> None:
    binds = [f"{shared}/file:/etc/hostname", f"{shared}/file:/opt/new/read-only:ro", f"{shared}:/mnt:ro"]
    with session(home, "root", *(word for bind in binds for word in ("--bind", bind))) as branch:
        assert inside(home, branch, "cat /etc/hostname /opt/new/read-only /mnt/file") == "of the host\n" * 3
        inside(home, branch, "echo changed >/etc/hostname")
        for attempt in ("echo x >/opt/new/read-only", "touch /mnt/x", "rm /mnt/file"):
            done = home.cli("exec", "-b", branch, "--", attempt)
            assert (done.code, "Read-only file system" in done.stdout) == (1, True), done
        done = home.cli("exec", "-b", branch, "--", "mount -o remount,rw,bind /mnt")
        assert (done.code, "permission denied" in done.stdout) == (32, True), done
    assert (shared / "file").read_text() == "changed\n"
    assert Path("/etc/hostname").read_text() != "changed\n"
    assert [path.name for path in shared.iterdir()] == ["file"]


def test_binds_are_there_again_when_the_branch_goes_on(home: Home, shared: Path) -> None:
    home.must("shell", "bound", "-d", "--bind", f"{shared}:/mnt")
    inside(home, "bound", "echo kept >/opt/kept")
    home.must("stop", "bound")
    home.must("shell", "bound", "-d")
    assert inside(home, "bound", "cat /mnt/file /opt/kept") == "of the host\nkept\n"
    home.must("stop", "bound")
    (shared / "file").rename(shared / "moved")
    shared.rename(shared.with_name("elsewhere"))
    done = home.cli("shell", "bound", "-d")
    assert (done.code, str(shared) in done.stderr) == (2, True), done
    shared.with_name("elsewhere").rename(shared)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/proc",
        "/proc/self",
        "/sys",
        "/sys/kernel",
        "/dev",
        "/dev/null",
        "/.waypoint",
        "/.waypoint/setsid",
        "/run/waypoint",
        "/run/waypoint/go",
        "//",
        "/../..",
        "/tmp/../proc/x",
        "relative",
        "./x",
        "",
    ],
)
def test_a_target_that_belongs_to_the_session_is_refused(home: Home, shared: Path, target: str) -> None:
    assert "bind" in refused(home, "--bind", f"{shared}:{target}")


@pytest.mark.parametrize("bind", ["", ":", "/tmp", "/no/such/thing:/mnt", "/tmp:/mnt:rw", "/tmp:/mnt:ro:x", ":/mnt"])
def test_a_bind_that_makes_no_sense_is_refused(home: Home, bind: str) -> None:
    said = refused(home, "--bind", bind)
    assert "bind" in said
    assert "next: " in said


def test_a_target_behind_a_link_of_the_base_cannot_lead_out(home: Home, shared: Path, tmp_path: Path) -> None:
    with session(home, "root") as branch:
        inside(home, branch, f"ln -s {tmp_path} /opt/link; ln -s / /opt/top")
        home.must("stop", branch)
        for target in ("/opt/link/x", "/opt/link", "/opt/top/etc/waypoint-was-here"):
            done = home.cli("shell", branch, "-d", "--bind", f"{shared}:{target}")
            assert (done.code, f" at {target}: a link or a file is on the way\n" in done.stderr) == (4, True), done
    assert not Path("/etc/waypoint-was-here").exists()
    assert not (tmp_path / "x").exists()
