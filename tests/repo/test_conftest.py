"""What the shared conftest promises to every test, tried on tests written for it in a run of their own."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.repo.trial import run_trial, write_trial

WITHOUT_PROGRAMS = {"PATH": "/nonexistent"}

NEEDS_ZSH = """
    import pytest

    @pytest.mark.requires("zsh")
    def test_trial(): pass
"""


def run_one(folder: Path, source: str, **variables: str) -> Any:
    write_trial(folder, source)
    return run_trial(folder, env=variables)


def test_a_test_whose_need_is_missing_is_skipped_with_the_word(tmp_path: Path) -> None:
    done = run_one(tmp_path, NEEDS_ZSH, **WITHOUT_PROGRAMS)
    assert "1 skipped" in done.stdout
    assert "requires zsh: no program zsh" in done.stdout


def test_where_everything_is_required_a_missing_need_fails(tmp_path: Path) -> None:
    done = run_one(tmp_path, NEEDS_ZSH, WAYPOINT_REQUIRE_ALL="1", **WITHOUT_PROGRAMS)
    assert "this machine must have zsh: no program zsh" in done.stdout
    assert done.returncode == 1


def test_a_need_that_the_machine_may_lack_is_skipped_all_the_same(tmp_path: Path) -> None:
    variables = {"WAYPOINT_REQUIRE_ALL": "1", "WAYPOINT_MAY_LACK": "vagrant,zsh", **WITHOUT_PROGRAMS}
    assert "1 skipped" in run_one(tmp_path, NEEDS_ZSH, **variables).stdout


def test_an_unknown_need_ends_the_run(tmp_path: Path) -> None:
    done = run_one(tmp_path, NEEDS_ZSH.replace("zsh", "zhs"))
    assert "requires() knows no 'zhs'" in done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR


def test_the_callers_own_waypoint_does_not_reach_the_tests(tmp_path: Path) -> None:
    source = """
        import os

        def test_trial():
            assert not {"WAYPOINT_HOME", "WAYPOINT_BRANCH", "SUDO_UID"} & set(os.environ)
    """
    variables = {"WAYPOINT_HOME": "/srv/mine", "WAYPOINT_BRANCH": "mine", "SUDO_UID": "1000"}
    done = run_one(tmp_path, source, **variables)
    assert done.returncode == 0, done.stdout


@pytest.mark.privileged
def test_a_privileged_test_that_leaves_a_process_fails(tmp_path: Path) -> None:
    source = """
    import subprocess, pytest
    from tests import leaks
    from tests.processes_now import processes, words_of
    from tests.waiting import wait_until

    leaks.SETTLE_S = 0.1

    @pytest.mark.privileged
    def test_trial():
        subprocess.run(["setsid", "--fork", "sleep", "6021"], check=True)
        wait_until(lambda: ["sleep", "6021"] in [words_of(one.pid) for one in processes()], "it runs")
    """
    done = run_one(tmp_path, source)
    found = re.search(r"process: pid (\d+) sleep 6021", done.stdout)
    assert found, done.stdout
    os.kill(int(found[1]), signal.SIGKILL)
    assert "1 passed, 1 error" in done.stdout
