"""What the test harness promises to the people who run the tests."""

import os
import pwd
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from tests import leaks
from tests.homes import RUN_VARIABLE
from tests.repo.trial import run_trial, write_trial

LOOK = """
    import os, resource, signal, subprocess

    def test_of_the_run():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert os.umask(0o022) == 0o022
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 4096

    def test_of_children():
        assert subprocess.run(["false"]).returncode == 1
        assert "cannot access" in subprocess.run(["ls", "/nosuch"], capture_output=True, text=True).stderr
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
        fields = dict(line.split(":\\t", 1) for line in status.splitlines() if ":\\t" in line)
        assert (fields["SigIgn"], fields["SigBlk"], fields["Umask"]) == ("0" * 16, "0" * 16, "0022")
"""


def as_nohup_in_a_script() -> None:
    """Ignore all signals (with SIGCHLD ignored, each program seems to succeed), as `nohup command &` does, and more."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *range(32, 65)}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGINT, signal.SIGUSR1])
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_what_the_caller_ignores_does_not_reach_the_tests(tmp_path: Path) -> None:
    write_trial(tmp_path, LOOK)
    done = run_trial(tmp_path, env={"LC_ALL": "C", "LANGUAGE": "de"}, preexec_fn=as_nohup_in_a_script)
    assert "2 passed" in done.stdout, done.stdout
    assert done.returncode == 0


def test_the_callers_own_home_and_session_do_not_reach_the_tests(tmp_path: Path) -> None:
    source = """
        import os

        def test_trial():
            assert not {"WAYPOINT_HOME", "WAYPOINT_BRANCH", "SUDO_UID"} & set(os.environ)
            assert os.environ["WAYPOINT_TEST_SIZE"] == "7"
    """
    write_trial(tmp_path, source)
    callers = {"WAYPOINT_HOME": "/srv/mine", "WAYPOINT_BRANCH": "mine", "SUDO_UID": "1000"}
    done = run_trial(tmp_path, env={**callers, "WAYPOINT_TEST_SIZE": "7"})
    assert done.returncode == 0, done.stdout


@pytest.mark.privileged
@pytest.mark.requires("public-checkout")
def test_roots_shells_do_not_run_the_administrators_bashrc() -> None:
    home = Path(pwd.getpwuid(0).pw_dir)
    assert [(path.name, path.stat().st_size) for path in home.iterdir()] == [(".bashrc", 0)]
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_missing_need_skips_the_test_and_fails_it_where_all_is_required(tmp_path: Path) -> None:
    write_trial(tmp_path, 'import pytest\n\n@pytest.mark.requires("zsh")\ndef test_trial(): pass\n')
    variables = {"PATH": "/nonexistent"}
    skipped = run_trial(tmp_path, env=variables)
    assert "requires zsh: no program zsh" in skipped.stdout
    assert skipped.returncode == 0
    failed = run_trial(tmp_path, env={**variables, "WAYPOINT_REQUIRE_ALL": "1"})
    assert "this machine must have zsh: no program zsh" in failed.stdout
    assert failed.returncode == 1


# --- what tests leave


@pytest.mark.privileged
def test_a_privileged_test_that_leaves_a_process_fails(tmp_path: Path) -> None:
    source = """
    import subprocess, pytest
    from tests import leaks

    leaks.SETTLE_S = 0.1

    @pytest.mark.privileged
    def test_trial():
        subprocess.run(["setsid", "--fork", "sleep", "60"], check=True)
    """
    write_trial(tmp_path, source)
    done = run_trial(tmp_path)
    found = re.search(r"process: pid (\d+) sleep 60", done.stdout)
    assert found, done.stdout
    os.kill(int(found[1]), signal.SIGKILL)
    assert "1 passed, 1 error" in done.stdout


def start_in_background(worker: int | None) -> int:
    """Start a program in a session of its own, as one that this worker (None: nobody) has started; return its pid."""
    variables = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    done = subprocess.run(
        ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 60 >&- 2>&-"],
        env=variables if worker is None else variables | {RUN_VARIABLE: str(worker)},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_a_process_is_blamed_on_the_worker_that_started_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "SETTLE_S", 0.0)
    before = leaks.take_stock()
    no_pid = 1 << 22  # the kernel's pids are smaller
    started = {"own": start_in_background(os.getpid()), "others": start_in_background(no_pid)}
    started["strangers"] = start_in_background(None)
    try:
        said = [thing.text for thing in leaks.wait_new(before, tmp_path_factory.getbasetemp())]
    finally:
        for pid in started.values():
            os.kill(pid, signal.SIGKILL)
    blamed = [name for name, pid in started.items() if any(text.startswith(f"pid {pid} ") for text in said)]
    assert blamed == ["own"], said


@pytest.mark.privileged
def test_a_mount_that_is_left_is_taken_away_before_its_folder_is_removed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "SETTLE_S", 0.0)
    before = leaks.take_stock()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
    assert tmp_path.is_mount()
    found = leaks.wait_new(before, tmp_path_factory.getbasetemp())
    leaks.umount([thing for thing in found if thing.text.startswith(f"{tmp_path} ")])
    assert not tmp_path.is_mount()
