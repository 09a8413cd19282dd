"""Tests that run beside each other, and how a run starts, tried on tests written for it in a run of their own."""

import itertools
import os
import pwd
import re
import resource
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import workers
from tests.homes import RUN_VARIABLE
from tests.places import ROOT
from tests.repo.trial import run_trial, write_trial
from tests.waiting import DEADLINE_S
from tests.workers import Turns

LOOK = """
    import os, resource, signal, subprocess

    def test_of_the_run():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert os.umask(0o022) == 0o022
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 4096

    def test_of_children():
        assert subprocess.run(["false"]).returncode == 1
        assert "cannot access" in subprocess.run(["ls", "/nosuch"], capture_output=True, text=True).stderr
        assert subprocess.run(["locale", "charmap"], capture_output=True, text=True).stdout == "UTF-8\\n"
        status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
        fields = dict(line.split(":\\t", 1) for line in status.splitlines() if ":\\t" in line)
        assert (fields["SigIgn"], fields["SigBlk"], fields["Umask"]) == ("0" * 16, "0" * 16, "0022")

    def test_an_interrupt_ends_a_child():
        with subprocess.Popen(["sleep", "60"]) as process:
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(2) == -signal.SIGINT
            finally:
                process.kill()
"""


ABROAD = {"LC_ALL": "C", "LANGUAGE": "de"}


def as_nohup_in_a_script() -> None:
    """What `nohup command &` does to a command, and more. Called between fork and exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *range(32, 65)}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGINT, signal.SIGUSR1])
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_what_the_caller_ignores_does_not_reach_the_tests(tmp_path: Path, options: list[str]) -> None:
    write_trial(tmp_path, LOOK)
    done = run_trial(tmp_path, *options, env=ABROAD, preexec_fn=as_nohup_in_a_script)
    assert "3 passed" in done.stdout, done.stdout
    assert done.returncode == 0


def test_without_our_start_it_does(tmp_path: Path) -> None:
    """The control: the trial sees what it is written to see."""
    write_trial(tmp_path, LOOK)
    (tmp_path / "switched_off.py").write_text("from tests import workers\nworkers.start_as_usual = lambda: None\n")
    variables = {**ABROAD, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = run_trial(tmp_path, "-p", "switched_off", env=variables, preexec_fn=as_nohup_in_a_script)
    assert "3 failed" in done.stdout, done.stdout


# --- turns

Asked = Callable[[Any], "Future[None]"]


def item(*, alone: bool) -> Any:
    return SimpleNamespace(get_closest_marker=lambda name: name if alone else None)


BESIDE, ALONE = item(alone=False), item(alone=True)


def has_to_wait(asked: "Future[None]") -> bool:
    try:
        asked.result(0.2)
    except TookTooLong:
        return True
    return False


def ask(folder: Path, threads: ThreadPoolExecutor, wanted: Any) -> "Future[None]":
    """Another worker's test asks for its turn, and gives it back as soon as it has it."""

    def take() -> None:
        other = Turns(folder)
        with other.turn(wanted, None):
            pass
        other.close()

    return threads.submit(take)


def test_tests_run_beside_each_other_but_not_beside_one_that_is_alone(tmp_path: Path) -> None:
    mine = Turns(tmp_path)
    with ThreadPoolExecutor() as threads:
        with mine.turn(BESIDE, None):
            ask(tmp_path, threads, BESIDE).result(DEADLINE_S)
            alone = ask(tmp_path, threads, ALONE)
            assert has_to_wait(alone)
            late = ask(tmp_path, threads, BESIDE)
            assert has_to_wait(late), "who asks later must not overtake: the other might wait for ever"
        alone.result(DEADLINE_S)
        late.result(DEADLINE_S)
        with mine.turn(ALONE, None):
            others = [ask(tmp_path, threads, wanted) for wanted in (ALONE, BESIDE)]
            assert all(map(has_to_wait, others))
    mine.close()


def test_files_that_take_long_come_first_and_tests_that_are_alone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "LONG", ("t/longest.py", "t/long.py"))
    names = ["few.py::a", "many.py::a", "many.py::b", "long.py::a", "mixed.py::alone", "longest.py::a", "mixed.py::a"]
    items = [
        SimpleNamespace(nodeid=f"t/{name}", get_closest_marker=lambda _, name=name: name.endswith("::alone") or None)
        for name in names
    ]
    found = [item.nodeid.removeprefix("t/") for item in workers.in_order(cast(Any, items))]
    assert found == [
        *("longest.py::a", "long.py::a"),
        *("many.py::a", "many.py::b", "mixed.py::a", "few.py::a"),
        "mixed.py::alone",
    ]


def test_no_file_of_the_long_ones_is_gone() -> None:
    assert [file for file in workers.LONG if not (ROOT / file).is_file()] == []


def test_between_two_that_are_alone_nobody_runs(tmp_path: Path) -> None:
    mine = Turns(tmp_path)
    with ThreadPoolExecutor() as threads:
        with mine.turn(ALONE, ALONE):
            pass
        other = ask(tmp_path, threads, BESIDE)
        assert has_to_wait(other)
        with mine.turn(ALONE, BESIDE):
            pass
        other.result(DEADLINE_S)
    mine.close()


TIMES = """
    import contextlib, pathlib, pytest, time

    pytestmark = MARKS

    @contextlib.contextmanager
    def noted(what):
        begin = time.monotonic()
        yield
        with pathlib.Path(__file__).with_suffix(".times").open("a") as file:
            file.write(f"{what} {begin} {time.monotonic()}\\n")

    @pytest.fixture(autouse=True, scope="module")
    def shared():
        with noted("file"):
            time.sleep(0.2)
            yield

    @pytest.mark.parametrize("number", range(3))
    def test_trial(number):
        with noted("test"):
            time.sleep(0.1)
"""
Span = tuple[float, float]


def spans(folder: Path, files: str, what: str) -> list[Span]:
    rows = [line.split() for path in folder.glob(f"{files}.times") for line in path.read_text().splitlines()]
    return [(float(begin), float(end)) for kind, begin, end in rows if kind == what]


def overlap(pair: tuple[Span, Span]) -> bool:
    (begin, end), (other_begin, other_end) = pair
    return begin < other_end and other_begin < end


def test_in_a_run_of_several_workers_what_is_alone_overlaps_with_nothing(tmp_path: Path) -> None:
    """From the first fixture of a file of such tests to the last."""
    for name in ("beside-1", "beside-2", "beside-3"):
        write_trial(tmp_path, TIMES.replace("MARKS", "[]"), name)
    for name in ("alone-1", "alone-2"):
        write_trial(tmp_path, TIMES.replace("MARKS", "pytest.mark.alone('why')"), name)
    done = run_trial(tmp_path, "-n", "5", "--dist", "loadfile")
    assert "15 passed" in done.stdout, done.stdout
    alone, beside = spans(tmp_path, "*alone*", "file"), spans(tmp_path, "*beside*", "test")
    assert (len(alone), len(beside)) == (2, 9)
    assert any(map(overlap, itertools.combinations(beside, 2)))
    assert not any(map(overlap, itertools.product(alone, beside)))
    assert not any(map(overlap, itertools.combinations(alone, 2)))


MIXED = """
    import os, pathlib, pytest

    def note(what):
        with pathlib.Path(__file__).with_name("order").open("a") as file:
            file.write(f"{what} {os.getpid()}\\n")

    @pytest.mark.alone("why")
    def test_alone():
        note("alone")

    def test_beside():
        note("beside")
"""


def test_tests_that_are_alone_are_one_unit_whatever_their_file(tmp_path: Path) -> None:
    for name in ("one", "other", "third"):
        write_trial(tmp_path, MIXED, name)
    done = run_trial(tmp_path, "-n", "2", "--dist", "loadfile")
    assert "6 passed" in done.stdout, done.stdout
    rows = [line.split() for path in tmp_path.glob("**/order") for line in path.read_text().splitlines()]
    kinds = [kind for kind, _ in rows]
    assert "alone alone alone" in " ".join(kinds), kinds
    assert kinds[0] == "beside"
    assert len({pid for kind, pid in rows if kind == "alone"}) == 1


# --- what the caller sets

SIZES = """
    import os

    def test_of_the_environment():
        assert "WAYPOINT_HOME" not in os.environ
        assert os.environ["WAYPOINT_TEST_SIZE"] == "7"
"""


def test_sizes_of_tests_reach_them_and_a_home_does_not(tmp_path: Path) -> None:
    write_trial(tmp_path, SIZES)
    done = run_trial(tmp_path, env={"WAYPOINT_HOME": "/somebodys", "WAYPOINT_TEST_SIZE": "7"})
    assert "1 passed" in done.stdout, done.stdout


# --- a test that hangs

HANGS = """
    import time, pytest

    @pytest.fixture
    def ground():
        yield
        print("cleaned up")

    def test_that_hangs(ground):
        time.sleep(1000)

    def test_after_it():
        pass
"""


def test_a_test_that_hangs_fails_and_cleans_up(tmp_path: Path) -> None:
    write_trial(tmp_path, HANGS)
    done = run_trial(tmp_path, "-n", "1", "--timeout", "1")
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "cleaned up" in done.stdout
    assert "Timeout (>1.0s)" in done.stdout


# --- whose a thing is

GUILTY = """
    import os, subprocess, time, pytest
    from tests import leaks

    @pytest.mark.privileged
    def test_that_leaves():
        leaks.SETTLE_S = 0.1
        time.sleep(0.5)
        subprocess.run(["setsid", "--fork", "sleep", "5"], check=True)
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                os.closerange(0, 100)
                time.sleep(5)
            os._exit(0)
        os.wait()
"""
"""It leaves a program, and a fork of its own without exec, which end by themselves."""
INNOCENT = """
    import time, pytest

    @pytest.mark.privileged
    @pytest.mark.parametrize("number", range(20))
    def test_that_leaves_nothing(number):
        time.sleep(0.1)
"""


@pytest.mark.privileged
@pytest.mark.alone("its innocent tests must not meet what a third worker, that of another file, has left for a moment")
def test_what_one_worker_leaves_is_not_blamed_on_another(tmp_path: Path) -> None:
    write_trial(tmp_path, GUILTY, "guilty")
    write_trial(tmp_path, INNOCENT, "innocent")
    done = run_trial(tmp_path, "-n", "2", "--dist", "loadfile", "--durations=1", "--durations-min=4")
    blamed = re.findall(r"^ERROR \S*/test_(\w+)\.py::", done.stdout, re.MULTILINE)
    assert blamed == ["guilty"], done.stdout
    assert "21 passed, 1 error" in done.stdout
    # A machine of CI (the variable CI is set) prints each a second time, in the summary.
    left = set(re.findall(r"process: (pid \d+ (?:sleep 5|\S*python))", done.stdout))
    assert len(left) == 2, done.stdout
    assert "test_innocent" not in done.stdout, "it waited for what is not its own"


@pytest.mark.privileged
@pytest.mark.requires("public-checkout")
def test_roots_shells_start_with_nothing_of_this_machines_administrator() -> None:
    home = Path(pwd.getpwuid(0).pw_dir)
    assert [(path.name, path.stat().st_size) for path in home.iterdir()] == [(".bashrc", 0)]
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", [b"postgres\n", b"\xed\xa0\n", b"tests-run\n"])
def test_a_process_may_have_any_name_and_one_that_has_written_over_its_environment_is_nobodys(
    tmp_path: Path, name: bytes
) -> None:
    (tmp_path / "comm").write_bytes(name)
    for environ, pid in ((f"A=1\0{RUN_VARIABLE}=42\0B=2\0", 42), (f"A=1\0{RUN_VARIABLE}=", None), ("A=1\0", None)):
        (tmp_path / "environ").write_text(environ)
        assert workers.worker_of(str(tmp_path)) == pid
