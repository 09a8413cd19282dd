"""Users whom root has allowed to use a home get sessions as themselves. No verb gives them the rights of root.

A home that trusts its user fully shows that the refused requests work there.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest

from tests.acceptance.people import Person
from tests.collecting import collecting
from tests.homes import Home
from tests.places import ROOT
from tests.session.let_in import NOT_ALLOWED, refused, stop, succeeds
from tests.waiting import PATIENCE_S
from waypoint.client import wire
from waypoint.launch.ground import homes
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.linux.storage import mounts
from waypoint.model.paths import socket_path

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]

OF_WAYPOINT = 125  # the exit code of exec and run if Waypoint itself refuses


@pytest.fixture(scope="module")
def shared(let_in: Home) -> Home:
    """A home with `roots`, a session of root, and its checkpoints `roots-cp` and `roots-files`."""
    let_in.must("shell", "roots", "-d", "--user", "root")
    let_in.must("exec", "-b", "roots", "--", "umask 077; echo secret >/srv/secret")
    let_in.must("checkpoint", "roots-cp", "-b", "roots")
    let_in.must("checkpoint", "roots-files", "-b", "roots", "--tier", "files")
    return let_in


def test_a_user_gets_a_session_as_themselves(shared: Home, person: Person) -> None:
    assert succeeds(person.can(shared, "shell", "mine", "-d")) == "mine\n"
    assert succeeds(person.can(shared, "exec", "-b", "mine", "--", "id -un")) == f"{person.name}\n"
    succeeds(person.can(shared, "checkpoint", "mine-cp", "-b", "mine"))
    succeeds(person.can(shared, "fork", "mine-cp", "mine-2"))
    succeeds(person.can(shared, "restore", "mine-cp"))
    succeeds(person.can(shared, "undo", "-b", "mine"))
    succeeds(person.can(shared, "exec", "-b", "mine", "--", "waypoint fork mine mine-3"))
    succeeds(person.can(shared, "stop", "--files", "mine-2", "mine-3"))
    succeeds(person.can(shared, "branch", "rename", "mine-2", "mine-4"))
    succeeds(person.can(shared, "rm", "mine-cp", "mine-4"))
    assert "mine" in succeeds(person.can(shared, "logs", "mine"))
    stop(shared, "mine")


def test_stop_all_stops_only_the_sessions_of_the_user(shared: Home, own: str, person: Person) -> None:
    before = {one["branch"] for one in shared.must("ps", "--json").json()}
    succeeds(person.can(shared, "shell", "also", "-d"))
    done = person.can(shared, "stop", "--files", "--all")
    left = {one["branch"] for one in shared.must("ps", "--json").json()}
    assert sorted(line.split()[0] for line in succeeds(done).splitlines()) == sorted({"also", own})
    assert done.stderr == f"waypoint: did not stop {len(left)} sessions of other users\n"
    assert left == before - {own} >= {"roots"}
    assert person.can(shared, "stop", "--files", "--all", "--json").stdout == "[]\n"
    succeeds(person.can(shared, "shell", own, "-d"))


def test_a_session_as_somebody_else_is_refused(shared: Home, trusting: Home, person: Person) -> None:
    with collecting() as row:
        for user in ("root", "0", "daemon"):
            with row(user):
                words = ("shell", "other", "-d", "--user", user)
                refused(person.can(shared, *words), f"you are {person.name}")
                assert succeeds(person.can(trusting, *words)) == "other\n"
                stop(trusting, "other")
        with row("someone-else"):
            done = person.can(shared, "shell", "other", "-d", "--user", "someone-else")
            assert (done.returncode, "no such user" in done.stderr) == (2, True)


def test_a_user_gets_no_higher_limit_than_the_usual_one(shared: Home, trusting: Home, person: Person) -> None:
    for limit in (("--pids", "4097"), ("--memory", "8388607T")):
        words = ("shell", "large", "-d", *limit)
        refused(person.can(shared, *words), "this is more than the default of")
        succeeds(person.can(trusting, *words))
        stop(trusting, "large")
    succeeds(person.can(shared, "shell", "large", "-d", "--pids", "4096", "--memory", "128M"))
    stop(shared, "large")


def test_a_refused_undo_reveals_nothing_of_the_operation(shared: Home, person: Person) -> None:
    shared.must("shell", "roots-2", "-d", "--user", "root")
    shared.must("stop", "--files", "roots-2")
    number = shared.must("op", "log", "-n", "1", "--json").json()[0]["number"]
    done = person.can(shared, "undo", str(number))
    refused(done, f"you are {person.name}")
    assert "will be lost" not in done.stderr
    assert "will be lost" in shared.must("undo", str(number)).stderr
    stop(shared, "roots-2")


ON_ROOTS_SESSION = {
    "shell": ("shell", "roots", "-d", "--user", "root"),
    "shell from": ("shell", "new", "-d", "--from", "roots-cp", "--user", "root"),
    "shell from, as oneself": ("shell", "new", "-d", "--from", "roots-files", "--user", "{person}"),
    "exec": ("exec", "-b", "roots", "--user", "root", "--", "id"),
    "run": ("run", "-b", "roots", "--user", "root", "--", "id"),
    "logs": ("logs", "roots"),
    "checkpoint": ("checkpoint", "cp", "-b", "roots"),
    "moving a checkpoint": ("checkpoint", "--force", "roots-cp", "-b", "own"),
    "restore": ("restore", "roots-cp"),
    "restore elsewhere": ("restore", "roots-cp", "-b", "own"),
    "restore as new": ("restore", "roots-cp", "--new", "new"),
    "restore of files": ("restore", "roots-cp", "-b", "own", "--only", "files"),
    "restore over": ("restore", "own-cp", "-b", "roots"),
    "restore of files over": ("restore", "own-cp", "-b", "roots", "--only", "files"),
    "fork of a branch": ("fork", "roots", "new"),
    "fork of a checkpoint": ("fork", "roots-cp", "new"),
    "stop": ("stop", "--files", "roots"),
    "rename": ("branch", "rename", "roots-ended", "new"),
    "remove": ("rm", "roots-cp"),
    "remove, among the own": ("rm", "own-cp", "roots-cp"),
    "undo": ("undo", "-b", "roots"),
}


@pytest.fixture(scope="module")
def own(shared: Home, person: Person) -> str:
    """The session `own` of the person; `own-cp` is a checkpoint of it. `roots-ended` is an ended session of root."""
    succeeds(person.can(shared, "shell", "own", "-d"))
    succeeds(person.can(shared, "checkpoint", "own-cp", "-b", "own"))
    shared.must("shell", "roots-ended", "-d", "--user", "root")
    shared.must("stop", "--files", "roots-ended")
    return "own"


def test_every_verb_on_a_session_or_capture_of_root_is_refused_to_a_user(
    shared: Home, own: str, person: Person
) -> None:
    before = shared.must("branch", "--json").stdout
    with collecting() as row:
        for verb, words in ON_ROOTS_SESSION.items():
            with row(verb):
                refused(
                    person.can(shared, *(word.replace("{person}", person.name) for word in words)),
                    f"it belongs to root, and you are {person.name}",
                    OF_WAYPOINT if verb in ("exec", "run") else 3,
                )
                assert shared.must("branch", "--json").stdout == before
    assert shared.must("show", "roots-cp", "--json").json()["user"] == "root"


def test_a_fully_trusted_user_may_use_sessions_and_captures_of_root(trusting: Home, person: Person) -> None:
    for words in (
        ("shell", "roots", "-d", "--user", "root"),
        ("exec", "-b", "roots", "--user", "root", "--", "id -u | grep -x 0"),
        ("run", "-b", "roots", "--user", "root", "--", "true"),
        ("checkpoint", "roots-cp", "-b", "roots"),
        ("restore", "roots-cp", "--new", "copy"),
        ("fork", "roots-cp", "copy-2"),
        ("checkpoint", "--force", "roots-cp", "-b", "copy"),
        ("logs", "roots"),
        ("stop", "copy", "copy-2", "roots", "--discard"),
        ("rm", "roots-cp"),
    ):
        succeeds(person.can(trusting, *words))


def as_person(person: Person, program: str) -> str:
    """Run a Python program as the person, and return its output."""
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}"]
    done = subprocess.run(
        words, user=person.uid, group=person.gid, extra_groups=[], cwd="/", capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("field", ["user", "default_user"])
def test_a_client_cannot_claim_to_be_another_user(shared: Home, person: Person, field: str) -> None:
    """The command line sends these fields for a caller of sudo, but any client could send them."""
    body = {"branch": "by-hand", field: "root"}
    ask = f"from waypoint.client.link import ask; print(ask({str(shared.path)!r}, 'POST', '/v1/sessions', {body!r}))"
    said = as_person(person, ask)
    if field == "user":
        assert f"NotAllowed: cannot start a session as user root: you are {person.name}" in said
    else:
        assert f"'user': '{person.name}'" in said
        stop(shared, "by-hand")
    run = f"{{'argv': ['id'], {field!r}: 'root'}}"
    command = "from waypoint.client.command import Command"
    go_on = f"{command}; print(Command({str(shared.path)!r}, 'roots', 'run', {run}).wait(print, print, -1))"
    assert f"it belongs to root, and you are {person.name}" in as_person(person, go_on)


@pytest.mark.soak(part="walls")
def test_trust_can_be_revoked_and_given_again(trusting: Home, person: Person) -> None:
    words = ("shell", "taken", "-d", "--user", "root")
    assert "with full trust" in trusting.must("setup", "--check").stderr
    trusting.must("setup", "--user", person.name)
    assert "with full trust" not in trusting.must("setup", "--check").stderr
    done = person.can(trusting, *words)
    refused(done, f"you are {person.name}")
    assert "only their own sessions and captures" in trusting.must("doctor").stdout
    step = f"let root run the command; or, if {person.name} may have the rights of root on this machine: sudo waypoint "
    _, _, advice = done.stderr.partition(f"\n  next: {step}")
    trusting.must(*shlex.split(advice))
    assert "and so the rights of root on this machine" in trusting.must("doctor").stdout
    succeeds(person.can(trusting, *words))
    stop(trusting, "taken")


@pytest.mark.soak(part="walls")
def test_revoking_trust_reports_sessions_that_keep_their_rights(trusting: Home, person: Person, tmp_path: Path) -> None:
    succeeds(person.can(trusting, "shell", "kept", "-d", "--user", "root", "--bind", f"{tmp_path}:/mnt"))
    said = f"sessions that user {person.name} started with full trust keep their rights and binds: "
    done = trusting.must("setup", "--user", person.name)
    assert said in done.stderr
    assert "'waypoint ps' lists all sessions, 'waypoint stop BRANCH' ends one" in done.stderr
    assert "kept" in trusting.must("ps").stdout
    trusting.must("exec", "-b", "kept", "--", "echo here >/mnt/file")
    assert (tmp_path / "file").read_text() == "here\n"
    refused(person.can(trusting, "exec", "-b", "kept", "--", "true"), f"you are {person.name}", code=125)
    refused(person.can(trusting, "fork", "kept", "kept-2"), f"you are {person.name}")
    trusting.must("stop", "kept", "--discard")
    assert said not in trusting.must("setup", "--user", person.name).stderr
    assert said not in trusting.must("setup", "--user", person.name, "--trust", "full").stderr


@pytest.mark.soak(part="walls")
def test_trust_belongs_to_one_user(trusting: Home, person: Person) -> None:
    trusting.must("setup", "--user", "nobody")
    trusting.must("setup", "--user", person.name)
    refused(person.can(trusting, "shell", "x", "-d", "--user", "root"), f"you are {person.name}")
    done = trusting.cli("setup", "--trust", "full")
    assert (done.code, "it works with --user only" in done.stderr) == (2, True)
    assert "next: add --user USER" in done.stderr
    trusting.must("setup", "--user", person.name, "--trust", "full")


MORE = {
    "the machine's network": (("--net", "host"), ("--net", "private"), "it had the machine's network"),
    "a folder of the machine": (("--bind", "/opt:/mnt"), ("--bind", "/opt:/mnt:ro"), "it had a --bind of /opt"),
    "a higher limit": (("--pids", "3000"), ("--pids", "300"), "it had another limit: pids"),
    "root's rights": (("--user", "root"), ("--user", "{person}"), "it belonged to root"),
}


def test_a_session_cannot_start_a_session_with_more_rights(shared: Home, person: Person) -> None:
    with collecting() as row:
        for what, (before, after, said) in MORE.items():
            with row(what):
                wide, narrow, kept = (f"{what.split()[-1]}-{name}" for name in ("wide", "narrow", "kept"))
                shared.must("shell", wide, "-d", *before)
                shared.must("checkpoint", kept, "-b", wide, "--tier", "files")
                as_now = [word.replace("{person}", person.name) for word in after]
                shared.must("shell", narrow, "-d", "--from", kept, *as_now)
                for words in (f"restore {kept}", f"restore {kept} --new new", f"fork {kept} new"):
                    done = shared.cli("exec", "-b", narrow, "--", f"waypoint {words}")
                    assert (done.code, said in done.stdout) == (NOT_ALLOWED, True), done
                    assert "next: run the command outside of the session" in done.stdout
                shared.must("restore", kept, "-b", narrow)
                assert "new" not in [one["name"] for one in shared.must("branch", "--json").json()]
                stop(shared, wide, narrow)


def test_a_base_that_a_user_may_not_use_is_refused_before_its_files_are_read(
    shared: Home, person: Person, tmp_path: Path
) -> None:
    """A read of /proc/kmsg blocks until there is a kernel message, and would block the daemon."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").symlink_to("/proc/kmsg")
    tmp_path.chmod(0o755)
    done = person.can(shared, "shell", "based", "-d", "--base", str(tmp_path))
    said = f"base {tmp_path}: with your own files in it, you could control programs of root"
    assert (done.returncode, said in done.stderr) == (NOT_ALLOWED, True), done
    assert shared.must("ps", "--json").json()


def test_a_mount_in_another_home_gets_no_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, beside = tmp_path / "home", tmp_path / "beside"
    for folder in (home, beside):
        folder.mkdir()
        mounts.mount("tmpfs", str(folder), "tmpfs", 0)
    try:
        monkeypatch.setattr(homes, "known", lambda: [str(home)])
        places: Any = SimpleNamespace(host=None, hidden=(), folder_of=str, check_lower=lambda _record: "")
        overlays = plan_overlays("/", places).overlays
        assert (str(home) in overlays, str(beside) in overlays) == (False, True)
    finally:
        for folder in (home, beside):
            mounts.umount(str(folder))


def test_all_homes_are_hidden_in_every_session(shared: Home, trusting: Home) -> None:
    """Other homes are hidden, too, also in copies. Files that a session writes there exist in the session only."""
    assert (trusting.path / "names.db").exists()  # it exists on the host
    shared.must("shell", "sees", "-d", "--user", "root")
    shared.must("fork", "sees", "sees-2")
    shared.must("checkpoint", "sees-cp", "-b", "sees")
    shared.must("restore", "sees-cp")
    for branch in ("sees", "sees-2"):
        for home in (shared, trusting):
            assert shared.must("exec", "-b", branch, "--", f"ls -A {home.path}").stdout == ""
        made = f"echo x >{trusting.path}/names.db && cat {trusting.path}/names.db"
        assert shared.must("exec", "-b", branch, "--", made).stdout == "x\n"
    assert (trusting.path / "names.db").stat().st_size > 2
    stop(shared, "sees", "sees-2")


def test_a_user_shortens_the_undo_period_of_own_operations_only(shared: Home, person: Person) -> None:
    succeeds(person.can(shared, "gc"))
    refused(person.can(shared, "gc", "--undo-budget", "1M"), "other users could then undo fewer of their operations")
    succeeds(person.can(shared, "shell", "tidy", "-d"))
    shared.must("shell", "roots-tidy", "-d", "--user", "root")
    for _ in range(2):
        succeeds(person.can(shared, "checkpoint", "tidied", "-b", "tidy", "--force", "--anew"))
        shared.must("checkpoint", "roots-tidied", "-b", "roots-tidy", "--force", "--anew")
    done = person.can(shared, "gc", "--keep-operations", "0s", "--json")
    removed = {one["branch"] for one in json.loads(done.stdout)["removed"]}
    assert ("tidy" in removed, [one for one in removed if one.startswith("roots")]) == (True, [])
    assert not any(one["removed"] for one in shared.must("log", "roots-tidy", "--json").json())
    stop(shared, "tidy", "roots-tidy")


def test_a_user_cannot_end_commands_of_others_by_stopping_the_daemon(shared: Home, person: Person) -> None:
    """`run`, `exec` and `attach` end when the daemon is stopped."""
    with shared.background("run", "-b", "roots", "--", "sh", "-c", "echo begun; exec sleep 1000") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        refused(person.can(shared, "daemon", "stop"), "commands of other users would end with it")
        assert running.poll() is None
    assert shared.must("daemon", "status").stdout


def test_the_network_of_the_machine_is_reported_at_every_start(shared: Home, person: Person) -> None:
    said = "on the machine's network: the session can connect to all servers of this machine, also on 127.0.0.1 and "
    assert said in person.can(shared, "shell", "net", "-d", "--net", "host").stderr
    assert succeeds(person.can(shared, "checkpoint", "net-cp", "-b", "net", "--tier", "files"))
    for words in (("net",), ("net-2", "--from", "net-cp")):
        assert said in person.can(shared, "shell", *words, "-d").stderr
    assert said not in person.can(shared, "shell", "net-3", "-d").stderr
    stop(shared, "net", "net-2", "net-3")


def test_an_abstract_socket_of_the_machine_is_reachable_only_on_its_network(shared: Home, person: Person) -> None:
    name = f"waypoint-test-{os.getpid()}"
    reach = f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        for net, code in (("host", 0), ("private", 1), ("none", 1)):
            succeeds(person.can(shared, "shell", "abstract", "-d", "--net", net))
            done = person.can(shared, "run", "-b", "abstract", "--", "python3", "-c", reach)
            assert (done.returncode, "Connection refused" in done.stderr) == (code, bool(code)), done.stderr
            stop(shared, "abstract")


def test_an_attached_user_is_detached_when_a_session_of_root_replaces_theirs(
    shared: Home, trusting: Home, person: Person
) -> None:
    """Root restores a session of root on a branch to which another user is attached."""
    for home in (shared, trusting):
        home.must("shell", "shown", "-d", "--user", person.name)
        command, *words = home.argv("attach", "shown")

        def become() -> None:
            os.setgroups([])
            os.setgid(person.gid)
            os.setuid(person.uid)

        terminal = pexpect.spawn(command, words, env=person.env(home), cwd="/", timeout=PATIENCE_S, preexec_fn=become)
        terminal.expect_exact(b"[shown: everything here is a copy of this machine.")
        home.must("shell", "of-root", "-d", "--user", "root")
        home.must("restore", home.must("checkpoint", "r", "-b", "of-root", "--json").json()["capture"], "-b", "shown")
        if home is shared:
            terminal.expect(pexpect.EOF)
        else:
            terminal.sendline(b"id -u -n | tr a-z A-Z")
            terminal.expect_exact(b"ROOT")
        terminal.close(force=True)
        stop(home, "shown", "of-root")


def test_an_export_is_written_as_the_user_and_an_import_needs_full_trust(
    shared: Home, trusting: Home, own: str, person: Person, tmp_path: Path
) -> None:
    succeeds(person.can(shared, "checkpoint", "to-export", "-b", own))
    target, key = person.home / "own.tar", tmp_path / "key"
    succeeds(person.can(shared, "export", "to-export", str(target)))
    assert (target.stat().st_uid, target.stat().st_mode & 0o777) == (person.uid, 0o600)
    refused(person.can(shared, "export", "to-export", "/etc/own.tar"), "Permission denied: /etc")
    key.touch(mode=0o600)
    refused(person.can(shared, "export", "to-export", f"{target}2", "--sign", str(key)), "Permission denied")
    refused(person.can(shared, "export", "roots-cp", f"{target}3"), "it belongs to root")
    refused(person.can(shared, "import", str(target), "--as", "own-2"), "rights that you do not have")
    succeeds(person.can(trusting, "import", str(target)))
    assert trusting.must("show", "to-export", "--json").json()["user"] == person.name
    refused(person.can(trusting, "import", str(key)), "Permission denied")
    assert not [name for name in ("/etc/own.tar", f"{target}2", f"{target}3") if Path(name).exists()]


def test_a_user_cancels_only_own_jobs_and_writes_short_messages(shared: Home, person: Person) -> None:
    job = wire.request(socket_path(str(shared.path)), "POST", "/v1/jobs", {"kind": "doctor"})["job"]["id"]
    cancel = f"from waypoint.client.link import ask; print(ask({str(shared.path)!r}, 'POST', '/v1/jobs/{job}/cancel'))"
    assert f"NotAllowed: cannot cancel job {job}: root has started it" in as_person(person, cancel)
    found = wire.request(socket_path(str(shared.path)), "POST", f"/v1/jobs/{job}/cancel")
    assert found["job"]["state"] == "cancelled"
    succeeds(person.can(shared, "shell", "wordy", "-d"))
    long = person.can(shared, "checkpoint", "wordy-cp", "-b", "wordy", "-m", "x" * 5000)
    assert (long.returncode, "its message has 5000 bytes, but at most 4096 are kept" in long.stderr) == (2, True)
    stop(shared, "wordy")
