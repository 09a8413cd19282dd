"""`waypoint setup` and `setup --remove`."""

import grp
import json
import os
import pwd
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.cli.conftest import daemon_pid, exit_status
from tests.homes import CLI_TIMEOUT_S, OPEN, Home
from tests.places import ROOT, make_temp_root
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import files
from waypoint.linux.tasks import lock_holder, pidfd
from waypoint.setup.machine import unit

pytestmark = pytest.mark.privileged


@pytest.fixture
def bare() -> Iterator[Home]:
    """A home that is not set up yet; at the end it is removed."""
    with tempfile.TemporaryDirectory(prefix=f"setup-{os.getpid()}-", dir=make_temp_root()) as folder:
        home = Home(Path(folder) / "h")
        OPEN.add(home)
        yield home
        home.must("setup", "--remove", "--yes")
        OPEN.discard(home)


def config(home: Home) -> dict[str, object]:
    found = json.loads((home.path / "config.json").read_text())
    assert isinstance(found, dict)
    return found


def as_nobody(
    home: Home, *args: str, groups: list[int] | None = None, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    nobody = pwd.getpwnam("nobody")
    return subprocess.run(
        home.argv(*args),
        env=env or home.env,
        cwd="/",
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=groups or [],
        capture_output=True,
        text=True,
        timeout=CLI_TIMEOUT_S,
        check=False,
    )


def test_setup_creates_a_working_home(bare: Home) -> None:
    done = bare.must("setup")
    assert done.stdout == ""
    assert f"created the home {bare.path}" in done.stderr
    assert config(bare)["home_id"] == bare.id
    assert bare.path.stat().st_mode & 0o777 == 0o700
    bare.must("shell", "-d")
    assert bare.must("exec", "--", "echo works").stdout == "works\n"


def test_a_second_setup_changes_nothing(bare: Home) -> None:
    bare.must("setup")
    before = {path: path.stat().st_mtime_ns for path in bare.path.glob("config*")}
    again = bare.must("setup")
    assert "made" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in bare.path.glob("config*")} == before


def test_setup_keeps_other_settings_of_the_configuration(bare: Home) -> None:
    bare.must("setup")
    (bare.path / "config.json").write_text(json.dumps({**config(bare), "later": [1]}))
    bare.must("setup", "--group", "root")
    assert config(bare)["later"] == [1]
    assert config(bare)["group_gid"] == 0


def test_check_reports_missing_parts_and_changes_nothing(bare: Home) -> None:
    done = bare.cli("setup", "--check")
    assert done.code == 3
    assert "next: " in done.stderr
    assert not bare.path.exists()
    bare.must("setup")
    assert "CRIU" in bare.must("setup", "--check").stderr


def test_remove_ends_sessions_and_leaves_nothing(bare: Home) -> None:
    bare.must("setup")
    bare.must("shell", "-d")
    bare.must("shell", "other", "-d")
    bare.must("stop", "--files", "other")
    process = os.pidfd_open(bare.must("ps", "--json").json()[0]["pid"])
    done = bare.must("setup", "--remove", "--yes")
    assert "ended 1 session" in done.stderr
    assert select.select([process], [], [], 0)[0]  # the session's pid 1 has ended
    os.close(process)
    assert not bare.path.exists()
    assert not bare.runtime.exists()
    bare.must("setup", "--remove", "--yes")  # a second removal succeeds too


def test_remove_asks_first_and_without_a_terminal_it_refuses(bare: Home) -> None:
    bare.must("setup")
    bare.must("shell", "-d")
    refused = bare.cli("setup", "--remove")
    assert refused.code == 2
    assert f"next: see what the home contains: waypoint --home {bare.path} ps --all; then add --yes" in refused.stderr
    for answer, code in (("n", 130), ("y", 0)):
        assert [row["branch"] for row in bare.must("ps", "--json").json()] == ["main"]
        command, *words = bare.argv("setup", "--remove")
        terminal = pexpect.spawn(command, words, env=bare.env, timeout=CLI_TIMEOUT_S)
        terminal.expect("delete everything")
        terminal.sendline(answer)
        assert exit_status(terminal) == code
    assert not bare.path.exists()
    bare.must("setup", "--remove")  # without a home there is no question


@pytest.mark.soak(part="setup")
def test_remove_works_if_the_daemon_is_broken(bare: Home) -> None:
    bare.must("setup")
    bare.must("shell", "-d")
    bare.must("daemon", "stop")
    (bare.path / "names.db").write_bytes(b"no database")
    bare.must("setup", "--remove", "--yes")
    assert not bare.path.exists()


@pytest.mark.soak(part="setup")
def test_remove_ends_a_daemon_without_a_supervisor(bare: Home) -> None:
    bare.must("setup")
    path = bare.runtime / "supervisor.lock"
    supervisor = pidfd.open(lock_holder.signed_by(str(path)))
    pidfd.send_signal(supervisor, signal.SIGKILL)
    assert pidfd.wait_ended(supervisor, 2)
    os.close(supervisor)
    with files.locked(str(path)):
        ended = re.compile(
            "supervisor has (died|ended)"
        )  # "died" is logged if a zombie was taken for the new supervisor
        log = bare.path / "daemon.log"
        wait_until(lambda: len(ended.findall(log.read_text())) >= 6, "5 supervisors have not started")
    done = bare.must("setup", "--remove", "--yes", timeout_s=10)  # the daemon tries again 1.6 s later
    assert "stopped the daemon" in done.stderr
    assert not bare.path.exists()
    assert not bare.runtime.exists()


@pytest.mark.soak(part="setup")
def test_remove_ends_a_daemon_whose_runtime_folder_was_removed(bare: Home) -> None:
    bare.must("setup")
    shutil.rmtree(bare.runtime)
    bare.must("setup", "--remove", "--yes", timeout_s=10)
    assert not bare.path.exists()


@pytest.mark.soak(part="setup")
def test_remove_keeps_foreign_files(bare: Home) -> None:
    bare.must("setup")
    (bare.path / "letter.txt").write_text("mine")
    done = bare.cli("setup", "--remove", "--yes")
    assert done.code == 4
    assert "letter.txt" in done.stderr
    assert [path.name for path in sorted(bare.path.iterdir())] == ["config.json", "letter.txt"]
    (bare.path / "letter.txt").unlink()
    bare.must("setup", "--remove", "--yes")


def test_remove_refuses_a_directory_that_is_not_a_home(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/file").write_text("mine")
    done = Home(tmp_path).cli("setup", "--remove", "--yes")
    assert done.code == 4
    assert (tmp_path / "pool/file").read_text() == "mine"


def test_check_cannot_be_combined_with_remove(bare: Home) -> None:
    assert bare.cli("setup", "--check", "--remove").code == 2


# --- access of users


@pytest.mark.requires("public-checkout")
def test_by_default_only_root_has_access(bare: Home) -> None:
    bare.must("setup")
    done = as_nobody(bare, "ps")
    assert done.returncode == 3
    assert f"sudo waypoint --home {bare.path} setup --user nobody" in done.stderr


@pytest.mark.requires("public-checkout")
def test_the_named_user_has_access(bare: Home) -> None:
    bare.must("setup", "--user", "nobody")
    done = as_nobody(bare, "shell", "theirs", "-d")
    assert done.stdout == "theirs\n", done.stderr
    assert as_nobody(bare, "exec", "-b", "theirs", "--", "id -un").stdout == "nobody\n"


@pytest.mark.requires("public-checkout")
def test_an_ordinary_user_can_check_the_home_but_removes_only_completion_that_no_home_uses(bare: Home) -> None:
    bare.path.parent.chmod(0o755)
    missing = as_nobody(bare, "setup", "--check")
    assert (missing.returncode, "it has not been set up" in missing.stderr) == (3, True)
    bare.must("setup", "--user", "nobody")
    other = bare.path.parent / "other"
    other.mkdir(mode=0o700)
    (other / "config.json").touch()
    own = bare.path.parent / "own"
    own.mkdir()
    os.chown(own, pwd.getpwnam("nobody").pw_uid, -1)
    env = {**bare.env, "XDG_DATA_HOME": str(own)}
    assert as_nobody(bare, "setup", env=env).returncode == 0
    script = own / SCRIPTS[0].removeprefix("usr/local/share/")
    script.write_text(script.read_text().replace("# homes: [", f'# homes: ["{other}", '))
    before = written(own)

    checked = as_nobody(bare, "setup", "--check", env=env)
    assert checked.returncode == 0, checked.stderr
    assert f"the home {bare.path} exists; you may use it" in checked.stderr
    assert "CRIU: " in checked.stderr
    refused = as_nobody(bare, "setup", "--remove", env=env)
    assert (refused.returncode, "only root may do this" in refused.stderr) == (3, True)
    assert written(own) == before
    bare.must("setup", "--remove", "--yes")
    kept = as_nobody(bare, "setup", "--remove", env=env)
    assert (kept.returncode, f"kept {script}: {other} uses it, too" in kept.stderr) == (0, True), kept.stderr
    assert set(written(own)) == set(before)
    script.write_text(script.read_text().replace("# homes: [", f'# homes: ["{bare.path}", '))
    shutil.rmtree(other)
    assert f"removed {script}" in as_nobody(bare, "setup", "--remove", env=env).stderr
    assert written(own) == {}


@pytest.mark.soak(part="setup")
@pytest.mark.requires("public-checkout")
def test_members_of_the_named_group_have_access(bare: Home) -> None:
    bare.must("setup", "--group", "games")
    assert as_nobody(bare, "ps").returncode == 3
    assert as_nobody(bare, "ps", groups=[grp.getgrnam("games").gr_gid]).returncode == 0


@pytest.mark.soak(part="setup")
@pytest.mark.requires("public-checkout")
def test_access_can_be_changed_while_sessions_run(bare: Home) -> None:
    bare.must("setup")
    bare.must("shell", "-d")
    bare.must("exec", "--", "here=1")
    bare.must("setup", "--user", "nobody")
    assert as_nobody(bare, "ps").returncode == 0
    assert bare.must("exec", "--", "echo $here").stdout == "1\n"


@pytest.mark.parametrize("args", [["--user", "nosuch-user"], ["--group", "nosuch-group"]])
def test_an_unknown_user_is_refused_and_nothing_is_created(bare: Home, args: list[str]) -> None:
    done = bare.cli("setup", *args)
    assert done.code == 2
    assert args[1] in done.stderr
    assert not bare.path.exists()


@pytest.mark.soak(part="setup")
def test_setup_works_from_a_checkout(bare: Home) -> None:
    subprocess.run([ROOT / "dev", "waypoint", "setup"], env=bare.env, check=True, capture_output=True)
    assert config(bare)["home_id"] == bare.id


# --- files outside of the home: shell completion

SCRIPTS = ("usr/local/share/bash-completion/completions/waypoint", "usr/local/share/zsh/site-functions/_waypoint")


def written(root: Path) -> dict[str, tuple[str, int]]:
    """Return the content and the modification time of each file below `root`."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): (path.read_text(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.soak(part="setup")
def test_completion_is_written_once_and_removed_with_the_last_home(bare: Home) -> None:
    assert all(f"wrote {bare.root / script}" in bare.must("setup").stderr for script in SCRIPTS[:1])
    before = written(bare.root)
    assert set(before) == set(SCRIPTS)
    assert "wrote" not in bare.must("setup").stderr
    assert written(bare.root) == before
    other = {"WAYPOINT_HOME": str(bare.path.parent / "other")}
    bare.must("setup", env=other)
    bare.must("setup", "--remove", "--yes")
    assert set(written(bare.root)) == set(SCRIPTS)  # the other home still needs them
    assert "removed" in bare.must("setup", "--remove", "--yes", env=other).stderr
    assert list(bare.root.iterdir()) == []


@pytest.mark.soak(part="setup")
def test_completion_is_removed_although_another_home_is_gone(bare: Home) -> None:
    bare.must("setup")
    script = bare.root / SCRIPTS[0]
    script.write_text(script.read_text().replace("# homes: [", '# homes: ["/nonexistent", '))
    bare.must("setup", "--remove", "--yes")
    assert written(bare.root) == {}


@pytest.mark.soak(part="setup")
def test_a_shared_completion_directory_stays(bare: Home) -> None:
    bare.must("setup")
    (bare.root / SCRIPTS[0]).with_name("theirs").touch()
    bare.must("setup", "--remove", "--yes")
    assert set(written(bare.root)) == {str(Path(SCRIPTS[0]).with_name("theirs"))}
    shutil.rmtree(bare.root)


# --- systemd units, written below a directory of the test


def unit_of(home: Home) -> Path:
    return home.root / f"etc/systemd/system/waypoint-{home.id}.service"


@pytest.mark.soak(part="setup")
def test_without_systemd_there_is_no_unit(bare: Home) -> None:
    bare.must("setup")
    assert not (bare.root / "etc").exists()


@pytest.mark.soak(part="setup")
def test_with_systemd_a_unit_is_written_and_removed(bare: Home) -> None:
    (bare.root / "run/systemd/system").mkdir(parents=True)
    bare.must("setup")
    lines = unit_of(bare).read_text().splitlines()
    assert {"KillMode=process", "Delegate=yes", "Restart=on-failure", "WantedBy=multi-user.target"} <= set(lines)
    assert f'RequiresMountsFor="{bare.path}" "{bare.path}/hot/.memory"' in lines
    assert not [line for line in lines if line.startswith("RuntimeDirectory")]
    assert unit_of(bare).stat().st_mode & 0o777 == 0o644
    before = written(bare.root)
    bare.must("setup")
    assert written(bare.root) == before
    bare.must("setup", "--remove", "--yes")
    assert not unit_of(bare).exists()


@pytest.mark.soak(part="setup")
@pytest.mark.requires("systemd-analyze")
def test_systemd_understands_the_unit(bare: Home) -> None:
    (bare.root / "run/systemd/system").mkdir(parents=True)
    bare.must("setup")
    verify = ["systemd-analyze", "verify", "--man=no", str(unit_of(bare))]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    unit_of(bare).write_text(unit_of(bare).read_text().replace("KillMode=process", "KillMode=nosuch"))
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert "kill mode" in done.stderr  # systemd-analyze does find a wrong unit


@pytest.mark.soak(part="setup")
def test_the_unit_serves_the_home_until_it_is_stopped(bare: Home) -> None:
    """Only the main process gets SIGTERM, as from systemd with KillMode=process."""
    (bare.root / "run/systemd/system").mkdir(parents=True)
    bare.must("setup")
    bare.must("shell", "-d")
    bare.must("exec", "--", "here=1")
    command = next(line for line in unit_of(bare).read_text().splitlines() if line.startswith("ExecStart="))
    argv = shlex.split(command.removeprefix("ExecStart="))
    for _ in range(2):  # the second time is a restart
        bare.must("daemon", "stop")
        with subprocess.Popen(argv, env={"PATH": "/usr/bin:/bin"}, stderr=subprocess.PIPE) as main:
            assert main.stderr is not None
            assert main.stderr.readline() == f"serving {bare.path}\n".encode()
            assert bare.must("exec", "--", "echo $here").stdout == "1\n"
            main.terminate()
            assert main.wait(PATIENCE_S) == 0
        assert bare.cli("daemon", "status").code == 4
    assert bare.must("exec", "--", "echo $here").stdout == "1\n"


@pytest.mark.soak(part="setup")
@pytest.mark.parametrize("victims", [["supervisor"], ["supervisor", "daemon"]], ids=" and ".join)
def test_the_units_main_process_survives_killed_daemons(bare: Home, victims: list[str]) -> None:
    bare.must("setup")
    command, *words = bare.argv("daemon", "run")
    with subprocess.Popen([command, *words], env=bare.env, stderr=subprocess.PIPE) as main:
        assert main.stderr is not None
        main.stderr.readline()
        pids = {"supervisor": lock_holder.signed_by(str(bare.runtime / "supervisor.lock")), "daemon": daemon_pid(bare)}
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        assert main.stderr.readline() == f"serving {bare.path}\n".encode()  # the next supervisor
        assert lock_holder.signed_by(str(bare.runtime / "supervisor.lock")) != pids["supervisor"]
        bare.must("daemon", "stop")
        assert main.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("path", ["/var/lib/waypoint", "/a b/%h/$HOME", '/with "quotes" and \\'])
def test_odd_paths_are_quoted_in_the_unit(path: str) -> None:
    text = unit.text_of(path, ["/usr/bin/python3", "main.py"])
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    undone = [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(line.removeprefix("ExecStart="))]
    assert undone == ["/usr/bin/python3", "main.py", "--home", path, "daemon", "run"]


def test_the_unit_of_the_machines_home_has_the_plain_name() -> None:
    assert unit.name_of("/var/lib/waypoint") == "waypoint.service"
