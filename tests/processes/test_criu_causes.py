"""Diagnoses of real failures of CRIU. The logs are of CRIU 4.2.1, or the version in the file's name, on Linux 6.18."""

import re
from dataclasses import replace
from pathlib import Path

from tests.processes.refusals import REFUSALS
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
    "mptcp": "mptcp",
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


def test_each_recorded_failure_is_diagnosed() -> None:
    failed = []
    for log, cause in RECORDED.items():
        found = diagnose(read_errors(LOGS / f"{log}.log"))
        is_told = found.meaning and "{" not in found.meaning
        if found.name != cause or not is_told or found.words not in (LOGS / f"{log}.log").read_text():
            failed.append(f"{log}: {found}")
    assert not failed, "\n".join(failed)


def test_each_line_of_criu_is_diagnosed() -> None:
    wrong = []
    for line, cause in REFUSALS.items():
        found = diagnose([line])
        if found.name != cause or not found.meaning or "{" in found.meaning or found.meaning.endswith((" ", ":")):
            wrong.append(f"{line}: {found}")
    assert not wrong, "\n".join(wrong)


def test_the_name_of_the_process_begins_the_sentence() -> None:
    found = replace(diagnose(["Can't dump file 3 of that type [600] (anon anon_inode:x)"]), who="sh (pid 7, fd 3)")
    assert found.said == "sh (pid 7, fd 3) has a file open of a kind that CRIU cannot dump: anon anon_inode:x"
    found = replace(diagnose(["Can't dump nested user namespace for 4711"]), who="sh (pid 7)")
    assert (found.pid, found.said[:36]) == (4711, "sh (pid 7) is in a user namespace of")
    assert replace(diagnose(["new"]), who="sh (pid 7)").said.startswith("sh (pid 7): CRIU reports an error")


def test_lines_that_every_run_without_a_tun_device_writes_are_no_cause() -> None:
    assert diagnose(["tun: Unable to create tun: No such file or directory"]).name == "other"


def test_every_cause_has_a_recorded_log_or_a_line_and_every_log_a_test() -> None:
    assert {cause.name for cause in CAUSES} == {*RECORDED.values(), *REFUSALS.values()}
    assert {path.stem for path in LOGS.glob("*.log")} == set(RECORDED)


def test_the_meaning_names_the_file_or_process() -> None:
    said = {log: diagnose(read_errors(LOGS / f"{log}.log")).meaning for log in RECORDED}
    assert "/tmp/big" in said["ghost"]
    assert "80003072 bytes" in said["ghost"]
    assert "relative path new and then renamed to /opt/workload/socket0" in said["moved-socket"]
    assert "/dev/null" in said["external-file"]
    assert "anon_inode:[userfaultfd]" in said["userfaultfd"]
    assert "user namespace" in said["nested-pidns"]
    assert "/srv/trial/mysleep" in said["program-changed"]


def test_times_and_pids_before_error_lines_are_skipped() -> None:
    text = (
        "(00.001171) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
        "(00.002000)      7: Error (criu/mem.c:1467): `- Can't open vma\n"
        "pie: 3: Error (criu/pie/parasite.c:588): send_fds failed (-22)\n"
        "(00.1) Warn  (criu/x.c:1): Error is only a word here\n"
    )
    assert find_errors(text) == ["`- Can't open vma", "send_fds failed (-22)"]


def test_the_first_unknown_error_is_quoted() -> None:
    diagnosis = diagnose(["something new", "something else"])
    assert diagnosis == Diagnosis("other", "something new", "", diagnosis.next_step)
    assert diagnosis.next_step


def test_the_error_quotes_criu_only_if_the_reason_is_unknown() -> None:
    for log in RECORDED:
        diagnosis = diagnose(read_errors(LOGS / f"{log}.log"))
        assert diagnosis.words not in failure("dump", diagnosis, None).said, log
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
    seized = "(00.01) Seized task 7413, state 1\n(00.02) Seized task 7414, state 6\n"
    assert find_culprit(f"{seized}(00.02) Error (criu/seize.c:882): Zombies with threads are not supported\n") == (
        7414,
        -1,
    )
    assert (
        find_culprit(f"{seized}(00.02) Error (compel/x.c:1): Can't dump the 7415 thread with a pending SIGTRAP.\n")
        is None
    )
    assert read_culprit(LOGS / "disk-full.log") is None


def test_the_readable_line_about_a_killed_task_is_chosen() -> None:
    words = diagnose(read_errors(LOGS / "task-killed.log")).words
    assert re.fullmatch(r"\d+ was killed by 9 unexpectedly: Killed", words)


def test_an_exhausted_limit_is_an_accident() -> None:
    lines = (
        "send_fds failed (-109)",
        "Can't open inotify: Too many open files",
        "Can't open dir: Too many open files in system",
        "Can't fork for 3: Resource temporarily unavailable",
        "Can't write: Disk quota exceeded",
    )
    for line in lines:
        assert (diagnose([line]).name, diagnose([line]).is_accident) == ("used-up", True)
    assert diagnose(["send_fds failed (-22)", "Can't retrieve FDs from socket"]).name == "io-uring"
    assert not diagnose(["Can't read: Resource temporarily unavailable"]).is_accident


def test_an_error_of_a_session_file_is_not_an_accident_of_the_image_disk() -> None:
    errors = {
        "tty: Can't get tty params on 0x3: Input/output error": "terminal-ended",
        "Can't link remap to /a: Read-only file system": "removed-name",
        "Can't read this: Input/output error": "other",
    }
    for line, name in errors.items():
        assert (diagnose([line]).name, diagnose([line]).is_accident) == (name, False)


def test_a_missing_log_has_no_errors(tmp_path: Path) -> None:
    assert read_errors(tmp_path / "dump.log") == []
    assert diagnose([]).words == "CRIU ended without a message"


def test_the_error_has_four_parts_and_the_command_that_prints_the_log(tmp_path: Path) -> None:
    failed = failure("dump", diagnose(read_errors(LOGS / "ghost.log")), tmp_path / "7-dump.log")
    assert isinstance(failed, CannotCapture)
    assert failed.exit_code == 5
    assert failed.to_json() == {
        "code": "criu-ghost",
        "exit": 5,
        "tried": "dump the processes",
        "on": "(log: waypoint doctor --criu-log 7-dump)",
        "said": "a process has a deleted file open, /tmp/big, that is too large to be kept with the image"
        " (80003072 bytes)",
        "next": "free space on the disk, close the file, or end the process",
    }


def test_accidents_are_not_refusals(tmp_path: Path) -> None:
    happened = (
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
    )
    wrong = []
    for log in happened:
        diagnosis = diagnose(read_errors(LOGS / f"{log}.log"))
        failed = failure("dump", diagnosis, tmp_path / "dump.log").moved(tmp_path / "kept")
        is_accident = isinstance(failed, Failed) and not isinstance(failed, CannotCapture)
        if not is_accident or (failed.exit_code, failed.log) != (125, tmp_path / "kept"):
            wrong.append(f"{log}: {failed!r}")
    assert not wrong, "\n".join(wrong)


def test_a_criu_that_died_is_an_accident_whatever_its_log_contains(tmp_path: Path) -> None:
    for errors in ([], ["Can't dump file 5 of that type [140] (unknown)"]):
        failed = failure("dump", died(errors), tmp_path / "dump.log")
        assert isinstance(failed, Failed)
        assert "CRIU was killed" in failed.said
        assert failed.next_step
