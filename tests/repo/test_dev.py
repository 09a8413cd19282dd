"""`./dev`: exit status, owner of a user's checkout, `clean`, repeated cases."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.places import ROOT, temp_root

NOBODY = 65534


def dev(*args: str, checkout: Path = ROOT, **how: Any) -> tuple[int, str, str]:
    command = [str(checkout / "dev"), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def bare_checkout(tmp_path: Path) -> Path:
    """A checkout that was never set up, with only the files that `dev` reads."""
    checkout = tmp_path / "checkout"
    (checkout / "tests").mkdir(parents=True)
    for name in ("dev", "pyproject.toml", "tests/__init__.py", "tests/places.py"):
        shutil.copy(ROOT / name, checkout / name)
    return checkout


@pytest.fixture
def module(bare_checkout: Path) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("dev_under_test", str(bare_checkout / "dev"))
    found = importlib.util.module_from_spec(importlib.util.spec_from_loader("dev_under_test", loader))  # type: ignore[arg-type]
    loader.exec_module(found)
    return found


def test_an_unknown_verb_is_a_usage_error_with_the_list_of_verbs() -> None:
    code, out, err = dev("tset")
    assert (code, out) == (2, "")
    assert "./dev VERB" in err
    assert "clean" in err


def test_help_is_printed_on_stdout() -> None:
    code, out, err = dev("--help")
    assert (code, err) == (0, "")
    assert "waypoint ARGS" in out


@pytest.mark.privileged
def test_a_failure_is_reported_also_if_the_caller_ignores_sigchld() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert dev("test", "nosuch.py", "-q", preexec_fn=ignore)[0] == pytest.ExitCode.USAGE_ERROR


def test_waypoint_of_a_checkout_that_is_not_set_up_names_the_next_step(bare_checkout: Path) -> None:
    code, out, err = dev("waypoint", "ps", checkout=bare_checkout)
    assert (code, out) == (3, "")
    assert "next: ./dev setup" in err


def test_waypoint_runs_from_any_folder(tmp_path: Path) -> None:
    assert dev("waypoint", "--version", cwd=tmp_path)[:2] == dev("waypoint", "--version", cwd=ROOT)[:2]


@pytest.mark.privileged
def test_verbs_that_need_root_tell_other_users_so(bare_checkout: Path) -> None:
    for folder in (bare_checkout, *bare_checkout.parents):
        if folder.is_relative_to(temp_root()):
            folder.chmod(0o755)
    for verb in ("test", "demo", "bench"):
        code, _, err = dev(verb, checkout=bare_checkout, user=NOBODY)
        assert (code, f"{verb} needs root" in err, f"sudo ./dev {verb}" in err) == (3, True, True), err


@pytest.mark.privileged
def test_files_that_root_makes_in_a_users_checkout_are_given_to_the_user(
    module: ModuleType, bare_checkout: Path
) -> None:
    for path in (bare_checkout, *bare_checkout.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    cache = bare_checkout / "tests/__pycache__"
    cache.mkdir()
    (cache / "made").symlink_to("/etc/passwd")
    module.give_back(everything=False)
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in (cache, cache / "made")} == {(NOBODY, NOBODY)}
    assert Path("/etc/passwd").stat().st_uid == 0


@pytest.fixture
def temp_root_of_bare(bare_checkout: Path) -> Iterator[Path]:
    """The folder for temporary files of the bare checkout."""
    code = "from tests.places import make_temp_root; print(make_temp_root())"
    done = subprocess.run(["python3", "-c", code], cwd=bare_checkout, capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    yield folder
    subprocess.run(["umount", "--quiet", folder / "mounted"], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.privileged
def test_clean_removes_temporary_files_but_refuses_while_something_is_mounted(
    bare_checkout: Path, temp_root_of_bare: Path
) -> None:
    (bare_checkout / ".venv").mkdir()
    (bare_checkout / ".mypy_cache").mkdir()
    (temp_root_of_bare / "mounted").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", temp_root_of_bare / "mounted"], check=True)
    code, _, err = dev("clean", checkout=bare_checkout)
    assert code == 3
    assert f"still mounted, nothing was removed: {temp_root_of_bare}/mounted" in err
    assert (bare_checkout / ".venv").exists()
    subprocess.run(["umount", temp_root_of_bare / "mounted"], check=True)
    assert dev("clean", checkout=bare_checkout)[0] == 0
    assert not temp_root_of_bare.exists()
    assert sorted(path.name for path in bare_checkout.iterdir()) == ["dev", "pyproject.toml", "tests"]


FLAKY = """
import pathlib

import pytest


@pytest.mark.parametrize("number", range({cases}))
def test_trial(number):
    runs = pathlib.Path(__file__).with_name(f"{{number}}.runs")
    with runs.open("a") as file:
        file.write("x")
    assert len(runs.read_text()) > {failures}[number]
"""


@pytest.mark.parametrize(
    ("failures", "code", "said"),
    [
        pytest.param([0, 1, 2], 0, ["unstable: "] * 2, id="all pass in the end"),
        pytest.param([1, 3], 1, ["unstable: ", "failed: "], id="one goes on failing"),
        pytest.param([1] * 6, 1, ["failed: "] * 6, id="too many fail"),
    ],
)
def test_failed_cases_are_repeated(
    module: ModuleType, capsys: pytest.CaptureFixture[str], failures: list[int], code: int, said: list[str]
) -> None:
    text = FLAKY.format(cases=len(failures), failures=failures)
    Path(module.ROOT, "tests/test_trial.py").write_text(text)
    module.PYTHON = sys.executable  # type: ignore[attr-defined]
    assert module.run_tests("") == code
    printed = capsys.readouterr().err
    assert re.findall("unstable: |failed: ", printed) == said


@pytest.mark.privileged
def test_setup_links_the_command_of_the_machine_and_replaces_no_other(
    module: ModuleType, bare_checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, own = tmp_path / "root/usr/local/bin/waypoint", str(bare_checkout / "dev")
    module.COMMAND = str(command)
    module.link_command()
    assert os.readlink(command) == own
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert (version.returncode, "next: ./dev setup" in version.stderr) == (3, True)
    command.unlink()
    for aim, is_kept in (("/gone/checkout/dev", False), (str(ROOT / "dev"), True), ("/gone/other", True)):
        command.symlink_to(aim)
        module.link_command()
        assert os.readlink(command) == (aim if is_kept else own)
        assert ("stays a link to" in capsys.readouterr().err) == is_kept
        command.unlink()
    command.write_text("theirs")
    module.link_command()
    assert command.read_text() == "theirs"


@pytest.mark.privileged
def test_clean_removes_only_the_own_link(bare_checkout: Path, temp_root_of_bare: Path, tmp_path: Path) -> None:
    command = tmp_path / "root/usr/local/bin/waypoint"
    command.parent.mkdir(parents=True)
    env = {**os.environ, "WAYPOINT_SETUP_ROOT": str(tmp_path / "root")}
    for aim in (ROOT / "dev", bare_checkout / "dev"):
        command.unlink(missing_ok=True)
        command.symlink_to(aim)
        assert dev("clean", checkout=bare_checkout, env=env)[0] == 0
        assert command.is_symlink() == (aim == ROOT / "dev")


def test_the_linked_command_is_that_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "waypoint").symlink_to(ROOT / "dev")
    done = subprocess.run([tmp_path / "waypoint", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == dev("waypoint", "--version")[:2]
