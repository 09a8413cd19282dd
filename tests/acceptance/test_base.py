"""`shell --base`: a session on another root file system than the host's."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.seat import Seat
from tests.acceptance.sessions import inside, mounted, refused, session
from tests.acceptance.small_base import make_base, picture
from tests.homes import Home, open_home
from waypoint.egress.plan import RESOLVER

pytestmark = pytest.mark.privileged


Take = Callable[..., Seat]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    folder.chmod(0o755)
    return make_base(folder)


def test_a_base_is_what_the_session_sees(home: Home, base: Path) -> None:
    before = picture(base)
    with session(home, "root", "--base", str(base)) as branch:
        assert inside(home, branch, "cat /etc/marker; id -un; pwd; [ -e /usr/bin/vi ] || echo small") == (
            "the small base\nroot\n/root\nsmall\n"
        )
        inside(home, branch, "echo changed >/etc/marker; rm /bin/wc; mkdir /new; touch /bin/more; mv /etc/group /etc/g")
        assert inside(home, branch, "cat /etc/marker; ls /new /bin/more").startswith("changed\n")
        assert inside(home, branch, "echo $$ >/dev/null; ls /dev/pts /proc/self/exe")
        assert home.must("run", "-b", branch, "cat", "/etc/marker").stdout == "changed\n"
    assert picture(base) == before


def test_a_base_may_be_a_relative_path_and_has_its_own_users(home: Home, base: Path) -> None:
    command = home.argv("shell", "from-here", "-d", "--base", f"./{base.name}", "--user", "tester")
    subprocess.run(command, env=home.env, cwd=base.parent, check=True, capture_output=True)
    assert inside(home, "from-here", "id; pwd; touch mine; stat -c %U mine") == (
        "uid=4321(tester) gid=4322(testers) groups=4322(testers),4323(extra)\n/home/tester\ntester\n"
    )
    home.must("stop", "--files", "from-here")
    home.must("shell", "from-here", "-d")
    assert inside(home, "from-here", "cat /etc/marker; id -un; ls") == "the small base\ntester\nmine\n"
    home.must("stop", "--files", "from-here")
    said = home.cli("shell", "from-here", "-d", "--base", "/")
    assert said.code == 2
    assert str(base) in said.stderr


def test_a_base_without_bash_refuses_exec_with_the_reason(home: Home, tmp_path: Path, seat: Take) -> None:
    tmp_path.chmod(0o755)
    bare = make_base(tmp_path / "bare", bash=False)
    with session(home, "root", "--base", str(bare)) as branch:
        assert home.must("run", "-b", branch, "cat", "/etc/marker").stdout == "the small base\n"
        outer = seat().type(b"waypoint attach %s\r" % branch.encode()).prompt()
        outer.type(b"echo still $((6*7))\r").see(rb"still 42\r\n")
        done = home.cli("exec", "-b", branch, "--wait-prompt", "0.5", "--", "echo never")
        assert (done.code, done.stdout) == (125, "")
        assert "no shell with Waypoint's hooks" in done.stderr


def test_the_sh_of_a_base_may_be_bash(home: Home, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    fedora = make_base(tmp_path / "fedora")
    (fedora / "bin/sh").unlink()
    (fedora / "bin/sh").symlink_to("/bin/bash")
    with session(home, "root", "--base", str(fedora)) as branch:
        inside(home, branch, "kept=1; sleep 1234 & cat /etc/marker")
        home.must("checkpoint", f"{branch}-c", "-b", branch, "--tier", "live")
        home.must("restore", f"{branch}-c", "-b", branch)
        said = inside(home, branch, "echo $kept; jobs -r; : </dev/tty && echo its")
        assert said.split() == ["1", "[1]+", "Running", "sleep", "1234", "&", "its"]


def test_a_base_without_this_machines_c_library_works(home: Home, tmp_path: Path, seat: Take) -> None:
    tmp_path.chmod(0o755)
    busybox = shutil.which("busybox")
    assert busybox
    for name in ("bin", "etc", "root"):
        (tmp_path / "static" / name).mkdir(parents=True)
    shutil.copy(busybox, tmp_path / "static/bin/busybox")
    subprocess.run([busybox, "--install", "-s", str(tmp_path / "static/bin")], check=True)
    for link in (tmp_path / "static/bin").iterdir():
        if link.is_symlink():
            link.unlink()
            link.symlink_to("busybox")
    (tmp_path / "static/etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    with session(home, "root", "--base", str(tmp_path / "static")) as branch:
        done = home.must("run", "-b", branch, "sh", "-c", "ls /lib /lib64 2>&1; (sleep 0 &); cat /proc/1/comm")
        assert done.stdout.splitlines()[-1] == "sh"
        assert "ld-linux" not in done.stdout
        outer = seat().type(b"waypoint attach %s\r" % branch.encode())
        outer.see(rb"# ")
        outer.type(b"exit 5\r")
        assert outer.left() == 5


def test_a_mount_below_a_base_is_left_out_and_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = make_base(tmp_path / "with-mount")
    (folder / "more").mkdir()
    with mounted(folder / "more", "-t", "tmpfs", "none"), open_home("acc") as home:
        said = home.must("shell", "left-out", "-d", "--json", "--base", str(folder)).json()
        assert [one for one in said["left_out"] if one["subject"] == f"{folder}/more"]
        assert inside(home, "left-out", "ls -A /more") == ""
        home.must("stop", "left-out", "--discard")


def test_a_base_that_is_no_folder_is_refused(home: Home) -> None:
    for where in ("/no/such/folder", "/etc/passwd", "/dev/null", ""):
        assert "base" in refused(home, "--base", where), where


SECRET = "a secret of the host"


def test_links_in_a_base_never_lead_to_files_of_the_host(home: Home, tmp_path: Path) -> None:
    """The base's /etc/resolv.conf and /etc/passwd are links to files of the host or to FIFOs that block readers."""
    tmp_path.chmod(0o755)
    hostile = make_base(tmp_path / "hostile")
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "users").write_text("led:x:1234:1234::/:/bin/bash\n")
    (hostile / "run").mkdir()
    (hostile / "run/r").symlink_to(tmp_path / "secret")
    (hostile / "etc/resolv.conf").symlink_to("/run/r")
    with session(home, "root", "--base", str(hostile), "--net", "none") as branch:
        assert inside(home, branch, "cat /run/r /etc/resolv.conf 2>/dev/null; ls -A1 /run") == "lock\nwaypoint\n"
    (hostile / "etc/passwd").unlink()
    (hostile / "etc/passwd").symlink_to(tmp_path / "users")
    assert "there is no such user in the session" in refused(home, "--base", str(hostile), "--user", "led")
    for waits in ("/proc/kmsg", "/run/fifo"):
        (hostile / "etc/passwd").unlink()
        (hostile / "etc/passwd").symlink_to(waits)
        (hostile / "run/fifo").unlink(missing_ok=True)
        os.mkfifo(hostile / "run/fifo")
        assert "there is no such user in the session" in refused(home, "--base", str(hostile), "--user", "led")


def test_the_resolver_file_of_a_base_is_used(home: Home, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    usual = make_base(tmp_path / "usual")
    (usual / "run/resolve").mkdir(parents=True)
    (usual / "run/resolve/stub.conf").write_text("nameserver 192.0.2.1\n")
    (usual / "etc/resolv.conf").symlink_to("../run/resolve/stub.conf")
    with session(home, "root", "--base", str(usual), "--net", "none") as branch:
        assert inside(home, branch, "cat /etc/resolv.conf") == "nameserver 192.0.2.1\n"
    with session(home, "root", "--base", str(usual)) as branch:
        assert inside(home, branch, "cat /etc/resolv.conf") == f"nameserver {RESOLVER}\n"


def test_a_pool_on_the_file_system_of_the_base(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    base = make_base(tmp_path / "base")
    with open_home(within=base) as home:
        home.must("daemon", "stop")
        (home.path / "pool.img").unlink(missing_ok=True)
        (home.path / "pool/.gone").mkdir(exist_ok=True)  # the driver `copy`
        home.must("shell", "-d", "inside", "--base", str(base))
        inside(home, "inside", "echo first >/root/file")
        home.must("checkpoint", "one", "-b", "inside")
        inside(home, "inside", "echo second >/root/file; rm /etc/marker")
        assert home.must("cat", "inside:/root/file").stdout == "second\n"
        changed = {one["name"] for one in home.must("diff", "one", "inside", "--json").json()["files"]}
        assert changed == {"/etc/marker", "/root/file"}
        home.must("restore", "one", "-b", "inside", "--only", "files")
        assert inside(home, "inside", "cat /root/file /etc/marker") == "first\nthe small base\n"
        assert not [name for name in os.listdir(home.path / "pool") if name.startswith(".view")]
