"""The test harness: the state in which tests start, needs, and the check that a test leaves nothing behind."""

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import leaks
from tests.places import ROOT

TIMEOUT_S = 100.0


def run_pytest(
    folder: Path, source: str, env: dict[str, str], before_exec: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `source` as a test file, with the shared conftest. `env` is added to the environment."""
    file = folder / "test_trial.py"
    file.write_text(textwrap.dedent(source))
    options = ["-c", f"{ROOT}/pyproject.toml", "--rootdir", str(folder), "-m", "", "-p", "no:cacheprovider"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WAYPOINT_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "tests.conftest", str(file)],
        cwd=ROOT,
        env={**kept, "PYTEST_DEBUG_TEMPROOT": str(folder), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        preexec_fn=before_exec,
    )


def ignore_all_signals() -> None:
    """Ignore all signals, as `nohup command &` ignores some. With SIGCHLD ignored, each program seems to succeed."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *range(32, 65)}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGINT, signal.SIGUSR1])
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_tests_do_not_inherit_the_callers_state(tmp_path: Path) -> None:
    source = """
        import os, resource, signal, subprocess

        def test_trial():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert os.umask(0o022) == 0o022
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 4096
            assert not {"WAYPOINT_HOME", "SUDO_UID"} & set(os.environ)
            assert os.environ["WAYPOINT_TEST_SIZE"] == "7"
            assert subprocess.run(["false"]).returncode == 1
            assert "cannot access" in subprocess.run(["ls", "/nosuch"], capture_output=True, text=True).stderr
            status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
            fields = dict(line.split(":\\t", 1) for line in status.splitlines() if ":\\t" in line)
            assert (fields["SigIgn"], fields["SigBlk"], fields["Umask"]) == ("0" * 16, "0" * 16, "0022")
    """
    callers = {"LC_ALL": "C", "LANGUAGE": "de", "WAYPOINT_HOME": "/srv/mine", "SUDO_UID": "1000"}
    done = run_pytest(tmp_path, source, {**callers, "WAYPOINT_TEST_SIZE": "7"}, ignore_all_signals)
    assert done.returncode == 0, done.stdout


def test_a_missing_need_skips_the_test_and_fails_it_where_all_is_required(tmp_path: Path) -> None:
    source = 'import pytest\n\n@pytest.mark.requires("zsh")\ndef test_trial(): pass\n'
    variables = {"PATH": "/nonexistent"}
    skipped = run_pytest(tmp_path, source, variables)
    assert "requires zsh: no program zsh" in skipped.stdout
    assert skipped.returncode == 0
    failed = run_pytest(tmp_path, source, {**variables, "WAYPOINT_REQUIRE_ALL": "1"})
    assert "this machine must have zsh: no program zsh" in failed.stdout
    assert failed.returncode == 1


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
    done = run_pytest(tmp_path, source, {})
    found = re.search(r"process: pid (\d+) sleep 60", done.stdout)
    assert found, done.stdout
    os.kill(int(found[1]), signal.SIGKILL)
    assert "1 passed, 1 error" in done.stdout


@pytest.mark.privileged
def test_a_leaked_mount_is_unmounted_before_its_folder_is_removed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "SETTLE_S", 0.0)
    before = leaks.take_snapshot()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
    assert tmp_path.is_mount()
    found = leaks.wait_new(before, tmp_path_factory.getbasetemp())
    leaks.umount([thing for thing in found if thing.text.startswith(f"{tmp_path} ")])
    assert not tmp_path.is_mount()
