"""`./dev` says what it wants in words, does nothing twice, and leaves a user's checkout to the user."""

import importlib.machinery
import importlib.util
import os
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
    """A checkout that was never set up, with no more in it than `dev` needs to look at."""
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
    assert err.startswith("dev: there is no verb 'tset'\n")
    assert "./dev VERB" in err
    assert "clean" in err


def test_help_is_a_result() -> None:
    code, out, err = dev("--help")
    assert (code, err) == (0, "")
    assert "waypoint ARGS" in out


@pytest.mark.privileged
def test_what_fails_fails_also_for_a_caller_who_ignores_the_ends_of_children() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert dev("test", "nosuch.py", "-q", preexec_fn=ignore)[0] == pytest.ExitCode.USAGE_ERROR


def test_a_program_that_is_interrupted_may_say_what_it_had_done(bare_checkout: Path) -> None:
    """As pytest, which lists on ^C what had failed; the interrupt of a terminal reaches both."""
    ends = "trap 'echo told; exit 3' INT; kill -INT $PPID; kill -INT $$; exit 0"
    runs = """
import sys
from importlib.machinery import SourceFileLoader
sys.exit(SourceFileLoader('dev', 'dev').load_module().run(['sh', '-c', sys.argv[1]]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", runs, ends],
        cwd=bare_checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "told\n", "")


def test_a_checkout_that_is_not_set_up_says_so(bare_checkout: Path) -> None:
    code, out, err = dev("waypoint", "ps", checkout=bare_checkout)
    assert (code, out) == (3, "")
    assert "next: ./dev setup" in err


def test_waypoint_runs_from_any_folder(tmp_path: Path) -> None:
    assert dev("waypoint", "--version", cwd=tmp_path)[:2] == dev("waypoint", "--version", cwd=ROOT)[:2]


@pytest.mark.privileged
@pytest.mark.parametrize("verb", ["test", "demo", "bench"])
def test_what_needs_root_says_so_to_others(verb: str, bare_checkout: Path) -> None:
    for folder in (bare_checkout, *bare_checkout.parents):
        if folder.is_relative_to(temp_root()):
            folder.chmod(0o755)
    code, _, err = dev(verb, checkout=bare_checkout, user=NOBODY)
    assert code == 3
    assert f"{verb} needs root" in err
    assert f"sudo ./dev {verb}" in err


@pytest.mark.privileged
@pytest.mark.requires("strace")
def test_a_second_setup_starts_no_program(tmp_path: Path) -> None:
    assert dev("setup")[0] == 0
    trace = tmp_path / "trace"
    watch = ["strace", "-f", "-e", "trace=execve", "-o", str(trace)]
    subprocess.run([*watch, sys.executable, "-I", "-S", ROOT / "dev", "setup"], check=True)
    started = [line for line in trace.read_text().splitlines() if "execve(" in line]
    assert len(started) == 1, started  # dev itself


def test_other_requirements_make_the_environment_stale(module: ModuleType, bare_checkout: Path) -> None:
    before = module.fingerprint()
    (bare_checkout / "pyproject.toml").write_text("[project]\n")
    assert module.fingerprint() != before


@pytest.mark.privileged
def test_what_root_makes_in_a_users_checkout_is_the_users(module: ModuleType, bare_checkout: Path) -> None:
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
    """The folder for temporary things that belongs to the bare checkout."""
    code = "from tests.places import make_temp_root; print(make_temp_root())"
    done = subprocess.run(["python3", "-c", code], cwd=bare_checkout, capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    yield folder
    subprocess.run(["umount", "--quiet", folder / "mounted"], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.privileged
def test_clean_removes_what_was_made_but_not_through_a_mount(bare_checkout: Path, temp_root_of_bare: Path) -> None:
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
