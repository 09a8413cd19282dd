"""Reasons that CRIU gave in real failures, recorded with 4.2.1 (others as the name says) on Linux 6.18."""

import re
from pathlib import Path

import pytest

from waypoint.model.errors import CannotCapture, Failed
from waypoint.processes.criu.cause_table import CAUSES
from waypoint.processes.criu.causes import (
    Diagnosis,
    diagnose,
    died,
    failure,
    find_culprit,
    find_errors,
    read_culprit,
    read_errors,
)

LOGS = Path(__file__).parent / "logs"

RECORDED = {
    "behind-a-filter": "behind-a-filter",
    "cut-image": "image-damaged",
    "descriptors-asked": "used-up",
    "descriptors-sent": "used-up",
    "dev-tty": "dev-tty",
    "disk-failed": "disk-failed",
    "disk-full": "disk-full",
    "disk-read-only": "disk-failed",
    "disk-shut-down": "disk-failed",
    "external-file": "file-from-outside",
    "external-tty": "file-from-outside",
    "external-unix-socket": "unix-socket",
    "external-unix-stream": "unix-socket",
    "ghost": "ghost",
    "inotify": "inotify",
    "inotify-instances": "inotify-instances",
    "io-uring": "io-uring",
    "io-uring-mapped": "io-uring",
    "mount-not-named": "mount",
    "moved-socket": "moved-socket",
    "nested-pidns": "nested-namespace",
    "no-external": "external-missing",
    "no-image": "image-damaged",
    "no-process": "no-process",
    "no-source": "external-missing",
    "other-uid": "limits",
    "out-of-memory": "out-of-memory",
    "pid-taken": "pid-taken",
    "port-taken": "port-taken",
    "proc-replaced": "proc-replaced",
    "program-changed": "program-changed",
    "program-gone": "file-gone",
    "session-leader-outside": "session-leader",
    "socket-options-4.1.1": "socket-options",
    "helper-killed": "task-killed",
    "task-killed": "task-killed",
    "traced": "traced",
    "userfaultfd": "kind-of-file",
    "vdso-3.17.1": "vdso",
    "vfork": "vfork",
}


@pytest.mark.parametrize(("log", "cause"), RECORDED.items())
def test_a_recorded_failure_is_understood(log: str, cause: str) -> None:
    diagnosis = diagnose(read_errors(LOGS / f"{log}.log"))
    assert diagnosis.name == cause
    assert diagnosis.meaning
    assert "{" not in diagnosis.meaning
    assert diagnosis.words in (LOGS / f"{log}.log").read_text()


def test_every_cause_has_a_recorded_log_and_every_log_a_test() -> None:
    assert {cause.name for cause in CAUSES} == set(RECORDED.values())
    assert {path.stem for path in LOGS.glob("*.log")} == set(RECORDED)


def test_the_meaning_names_the_thing() -> None:
    said = {log: diagnose(read_errors(LOGS / f"{log}.log")).meaning for log in RECORDED}
    assert "/tmp/big" in said["ghost"]
    assert "80003072 bytes" in said["ghost"]
    assert "relative path new and then renamed to /opt/workload/socket0" in said["moved-socket"]
    assert "/dev/null" in said["external-file"]
    assert "anon_inode:[userfaultfd]" in said["userfaultfd"]
    assert "user namespace" in said["nested-pidns"]
    assert "/srv/trial/mysleep" in said["program-changed"]
    nested = diagnose(read_errors(LOGS / "nested-pidns.log"), lambda pid: f"the program {pid}").meaning
    assert re.match(r"the program \d+ is in a user namespace", nested)


def test_lines_with_times_and_pids_in_front_are_read_too() -> None:
    text = (
        "(00.001171) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
        "(00.002000)      7: Error (criu/mem.c:1467): `- Can't open vma\n"
        "pie: 3: Error (criu/pie/parasite.c:588): send_fds failed (-22)\n"
        "(00.1) Warn  (criu/x.c:1): Error is only a word here\n"
    )
    assert find_errors(text) == ["`- Can't open vma", "send_fds failed (-22)"]


def test_the_first_unknown_error_is_passed_on_in_criu_s_own_words() -> None:
    diagnosis = diagnose(["something new", "something else"])
    assert diagnosis == Diagnosis("unknown", "something new", "", diagnosis.next_step)
    assert diagnosis.next_step


@pytest.mark.parametrize("log", sorted(set(RECORDED)))
def test_criu_s_words_are_said_only_if_nobody_knows_what_they_mean(log: str) -> None:
    diagnosis = diagnose(read_errors(LOGS / f"{log}.log"))
    assert diagnosis.words not in failure("dump", diagnosis, None).said
    assert "new words" in failure("dump", diagnose(["new words"]), None).said


def test_the_process_at_which_a_dump_failed_is_found() -> None:
    errors = (LOGS / "userfaultfd.log").read_text()
    before = (
        "(00.01) Dumping task (pid: 7413 comm: sh)\n(00.01) 7413 fdinfo 9: pos:   0x0 flags:  2/0x1\n"
        "(00.02) Dumping task (pid: 7414 comm: python3)\n(00.02) 7414 fdinfo 3: pos:   0x0 flags:  2/0x1\n"
    )
    assert find_culprit(before + errors) == (7414, 3)
    assert find_culprit(errors) == (7414, -1)
    assert read_culprit(LOGS / "io-uring-mapped.log") == (32511, -1)
    assert read_culprit(LOGS / "disk-full.log") is None


def test_of_a_task_that_was_killed_the_readable_line_is_passed_on() -> None:
    words = diagnose(read_errors(LOGS / "task-killed.log")).words
    assert re.fullmatch(r"\d+ was killed by 9 unexpectedly: Killed", words)


@pytest.mark.parametrize(
    "line",
    [
        "send_fds failed (-109)",
        "Can't open inotify: Too many open files",
        "Can't open dir: Too many open files in system",
        "Can't fork for 3: Resource temporarily unavailable",
        "Can't write: Disk quota exceeded",
    ],
)
def test_what_is_used_up_is_no_reason_of_the_processes(line: str) -> None:
    assert diagnose([line]).name == "used-up"
    assert diagnose([line]).is_accident
    assert diagnose(["send_fds failed (-22)", "Can't retrieve FDs from socket"]).name == "io-uring"
    assert not diagnose(["Can't read: Resource temporarily unavailable"]).is_accident


@pytest.mark.parametrize(
    "line", ["tty: Can't get tty params on 0x3: Input/output error", "Can't link remap /a: Read-only file system"]
)
def test_what_a_file_of_the_processes_is_is_no_accident_of_the_disk(line: str) -> None:
    assert diagnose([line]).name == "unknown"
    assert not diagnose([line]).is_accident


def test_a_log_that_is_not_there_has_no_errors(tmp_path: Path) -> None:
    assert read_errors(tmp_path / "dump.log") == []
    assert diagnose([]).words == "CRIU ended without a message"


def test_the_error_has_four_parts_and_the_path_of_the_log(tmp_path: Path) -> None:
    failed = failure("dump", diagnose(read_errors(LOGS / "ghost.log")), tmp_path / "dump.log")
    assert isinstance(failed, CannotCapture)
    assert failed.exit_code == 5
    assert failed.to_json() == {
        "code": "cannot-capture",
        "exit": 5,
        "tried": "dump the processes",
        "on": f"(log: {tmp_path}/dump.log)",
        "said": "a process has a deleted file open, /tmp/big, that is too large to be kept with the image"
        " (80003072 bytes)",
        "next": "close the file, or end the process",
    }


@pytest.mark.parametrize(
    "log",
    [
        "descriptors-sent",
        "disk-failed",
        "disk-full",
        "disk-read-only",
        "disk-shut-down",
        "helper-killed",
        "inotify-instances",
        "no-process",
        "out-of-memory",
        "task-killed",
        "vfork",
    ],
)
def test_what_happened_is_no_refusal(tmp_path: Path, log: str) -> None:
    failed = failure("dump", diagnose(read_errors(LOGS / f"{log}.log")), tmp_path / "dump.log").moved(tmp_path / "kept")
    assert isinstance(failed, Failed)
    assert not isinstance(failed, CannotCapture)
    assert (failed.exit_code, failed.log) == (125, tmp_path / "kept")


@pytest.mark.parametrize("said", [[], ["Can't dump file 5 of that type [140] (unknown)"]])
def test_a_criu_that_died_is_an_accident_whatever_it_had_said(tmp_path: Path, said: list[str]) -> None:
    failed = failure("dump", died(said), tmp_path / "dump.log")
    assert isinstance(failed, Failed)
    assert "CRIU was killed" in failed.said
    assert failed.next_step
