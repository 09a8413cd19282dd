"""The doctor's trial of a CRIU, with real sessions of a temporary home and real dumps."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.places import ROOT, home_id
from tests.processes.stages import criu_path
from tests.waiting import DEADLINE_S, PATIENCE_S, wait_until
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import Failed
from waypoint.model.ids import is_id
from waypoint.model.paths import runtime_folder
from waypoint.setup import home_removal, trials
from waypoint.setup.rows import CRIU, DUMP, DUMP_SOCKET, DUMP_TERMINAL, MEMORY_TRACKING, RESTORE, passed
from waypoint.setup.trials import trial, try_everything

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "overlay", "timens", "userns")]

# A CRIU that refuses a dump if a program listens in the session, as CRIU 4.1.1 does on Linux 6.16 and newer.
NO_SOCKETS = """#!{python} -IS
import os, socket, struct, sys
sys.path.insert(0, {root!r})
from waypoint.processes.criu.messages import REQUEST, RESPONSE, RequestType, decode, encode
side = socket.socket(fileno=os.dup(int(sys.argv[2])))
request = decode(REQUEST, side.recv(1 << 20, socket.MSG_PEEK))
with open("/proc/self/net/tcp") as table:
    listens = any(line.split()[3] == "0A" for line in table.readlines()[1:])
if request["type"] == RequestType.DUMP and "freeze_cgroup" in request["opts"] and listens:
    caller, _, _ = struct.unpack("3i", side.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    log = request["opts"]["log_file"]
    with open(f"/proc/{{caller}}/fd/{{request['opts']['work_dir_fd']}}/{{log}}", "w") as file:
        file.write("(00.010000) Error (criu/sk-inet.c:1): Can't get 1:16 opt: Operation not supported\\n")
    side.recv(1 << 20)  # otherwise the other side gets a reset in place of the answer
    side.send(encode(RESPONSE, {{"type": RequestType.DUMP, "success": False}}))
    sys.exit(1)
os.execv({criu!r}, [{criu!r}, *sys.argv[1:]])
"""

# A CRIU that hangs when it should dump or restore a session.
HANGS = """#!{python} -IS
import os, signal, socket, sys
sys.path.insert(0, {root!r})
from waypoint.processes.criu.messages import REQUEST, RequestType, decode
side = socket.socket(fileno=os.dup(int(sys.argv[2])))
request = decode(REQUEST, side.recv(1 << 20, socket.MSG_PEEK))
if request["type"] == RequestType.{at} and ("freeze_cgroup" in request["opts"] or "root" in request["opts"]):
    signal.pause()
os.execv({criu!r}, [{criu!r}, *sys.argv[1:]])
"""
HANGS_AT = {1: "DUMP", 2: "RESTORE"}
"""The request at which the CRIU hangs, by the number of sessions that the trial has then."""

# A program that tries a CRIU; its exit status is 1 if the CRIU passes.
TRY = """
import sys
from pathlib import Path
from waypoint.model.errors import Failed
from waypoint.setup import rows, trials
try:
    sys.exit(rows.passed(trials.trial(*map(Path, sys.argv[1:]))))
except Failed:
    sys.exit(0)
"""


def groups_of(home: Path) -> list[Path]:
    """Return the cgroups of the sessions of `home`."""
    group = Path(cgroups.find_hierarchies().unified) / "waypoint" / home_id(home)
    return [path for path in group.glob("*") if is_id(path.name)]


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.requires("criu")
def test_a_criu_that_works_passes_and_nothing_is_left(tmp_path: Path) -> None:
    rows = trial(criu_path(), tmp_path)
    assert passed(rows), rows
    assert {CRIU, DUMP_TERMINAL, DUMP_SOCKET, RESTORE, MEMORY_TRACKING} <= {row.name for row in rows}
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_is_not_criu_is_quoted_and_the_rest_is_not_tried(tmp_path: Path) -> None:
    fake = script(tmp_path / "criu", "#!/bin/sh\necho not a criu >&2\nexit 1\n")
    rows = trial(fake, tmp_path)
    assert not passed(rows)
    assert (rows[0].name, rows[0].state, rows[0].why) == (CRIU, "missing", "not a criu")
    assert all(row.why.startswith("not tried") for row in rows[1:])
    assert all(row.remedy for row in rows)
    assert list(tmp_path.iterdir()) == [fake]


@pytest.mark.requires("criu")
def test_a_criu_whose_check_passes_but_whose_dumps_fail_does_not_pass(tmp_path: Path) -> None:
    """CRIU 4.1.1 behaves so on Linux 6.16."""
    shell = os.path.realpath("/bin/sh")
    says = f"""#!{shell}
case "$*" in check*) echo Looks good.; exit 0;; esac
ulimit -f 0
exec {criu_path()} "$@"
"""
    liar = script(tmp_path / "criu", says)
    assert subprocess.run([liar, "check"], capture_output=True, text=True, check=True).stdout == "Looks good.\n"
    rows = {row.name: row for row in trial(liar, tmp_path)}
    assert rows[CRIU].state == "ok"
    assert rows[DUMP_TERMINAL].state == "missing"
    assert not passed(list(rows.values()))


@pytest.mark.requires("criu")
def test_a_refusal_is_explained_and_dependent_steps_are_not_tried(tmp_path: Path) -> None:
    text = NO_SOCKETS.format(python=os.path.realpath(sys.executable), root=str(ROOT), criu=str(criu_path()))
    rows = {row.name: row for row in trial(script(tmp_path / "criu", text), tmp_path)}
    assert [rows[name].state for name in (CRIU, DUMP, DUMP_TERMINAL)] == ["ok", "ok", "ok"], rows
    assert "too old for this kernel: no process with a TCP or UDP socket" in rows[DUMP_SOCKET].why
    assert rows[RESTORE].why == f"not tried: {DUMP_SOCKET} failed"
    assert all("waypoint setup" in rows[name].remedy for name in (DUMP_SOCKET, RESTORE))


@pytest.mark.requires("criu", "btrfs")
def test_the_doctor_tries_everything(tmp_path: Path) -> None:
    rows = {row.name: row for row in try_everything(tmp_path, str(criu_path()))}
    required = [row for row in rows.values() if row.required_for != "optional"]
    assert [row for row in required if row.state != "ok"] == []
    assert {"user namespaces", "time namespaces", "overlayfs", "cgroup2 freezer", "btrfs pool"} <= set(rows)
    assert all(row.why and row.remedy for row in rows.values() if row.state != "ok")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requires("criu")
def test_a_trial_that_ends_without_an_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIAL_S", 0.01)
    with pytest.raises(Failed, match="the trial gave no result") as caught:
        trial(criu_path(), tmp_path)
    assert caught.value.on == str(criu_path())
    rows = {row.name: row for row in try_everything(tmp_path, str(criu_path()))}
    assert "the trial gave no result" in rows[RESTORE].why
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_reports_a_missing_criu(tmp_path: Path) -> None:
    rows = {row.name: row for row in try_everything(tmp_path, str(tmp_path / "nothing"))}
    assert rows["overlayfs"].state == "ok"
    assert rows[CRIU].state == rows[RESTORE].state == "missing"
    assert "WAYPOINT_CRIU" in rows[CRIU].remedy


@pytest.mark.requires("criu")
def test_parallel_trials_do_not_disturb_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        for rows in threads.map(trial, [criu_path()] * 3, [tmp_path] * 3):
            assert passed(rows), rows
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def begun(home: Path, sessions: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a process that runs a trial of a CRIU, when the trial has `sessions` sessions. The CRIU then hangs."""
    facts = {"python": os.path.realpath(sys.executable), "root": str(ROOT), "criu": str(criu_path())}
    hangs = script(home.with_name("hangs"), HANGS.format(at=HANGS_AT[sessions], **facts))
    argv = [sys.executable, "-c", TRY, str(hangs), str(home)]
    with subprocess.Popen(argv, cwd=ROOT) as somebody:
        try:
            wait_until(
                lambda: any(len(groups_of(made)) == sessions for made in home.glob("*")),
                f"{sessions} sessions live",
                PATIENCE_S,
            )
            yield somebody
        finally:
            somebody.kill()


def program_of(somebody: int) -> int:
    """Return the process of the trial, the only child of `somebody`."""
    (pid,) = map(int, Path(f"/proc/{somebody}/task/{somebody}/children").read_text().split())
    return pid


def by_the_next_trial(home: Path) -> None:
    assert passed(trial(criu_path(), home))


def by_the_removal_of_the_home(home: Path) -> None:
    (home / "config.json").write_text("{}")
    home_removal.remove(home, print)
    home.mkdir()


@pytest.mark.soak(part="faults")
@pytest.mark.requires("criu")
@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("swept", [by_the_next_trial, by_the_removal_of_the_home])
def test_remains_of_a_killed_trial_are_removed(tmp_path: Path, sessions: int, swept: Callable[[Path], None]) -> None:
    home = tmp_path / "h"
    home.mkdir()
    with begun(home, sessions) as somebody:
        program = os.pidfd_open(program_of(somebody.pid))
        somebody.kill()
        assert select.select([program], [], [], DEADLINE_S)[0]  # the trial ends with its parent
        os.close(program)
    (left,) = home.iterdir()
    groups = groups_of(left)
    assert groups  # at least one; the launcher may have ended the restored session
    assert Path(runtime_folder(str(left))).exists()
    swept(home)
    assert list(home.iterdir()) == []
    assert not any(group.exists() for group in groups)
    assert not Path(runtime_folder(str(left))).exists()


@pytest.mark.soak(part="faults")
@pytest.mark.requires("criu")
@pytest.mark.parametrize("sessions", [1, 2])
def test_the_parent_of_a_killed_trial_removes_its_remains(tmp_path: Path, sessions: int) -> None:
    home = tmp_path / "h"
    home.mkdir()
    with begun(home, sessions) as somebody:
        (made,) = home.iterdir()
        groups = groups_of(made)
        os.kill(program_of(somebody.pid), signal.SIGKILL)
        assert somebody.wait(PATIENCE_S) == 0  # the CRIU has not passed
    assert list(home.iterdir()) == []
    assert not any(group.exists() for group in groups)
    assert not Path(runtime_folder(str(made))).exists()
