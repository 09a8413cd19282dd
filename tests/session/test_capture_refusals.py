"""Dumps that CRIU refuses and restores that fail are explained, and leave the session unchanged."""

import contextlib
import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.answers import unusual
from tests.homes import Completed, Home, open_home
from tests.session import ledger
from tests.waiting import wait_until
from waypoint.client import Client, Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

QUICK_S = 5.0  # how long two attempts may take, of which the second writes a long log
BEAT = """
import time
gap, last = 0.0, time.monotonic()
while True:
    time.sleep(0.005)
    now = time.monotonic()
    if now - last > gap:
        gap = now - last
        with open("/srv/gap", "w") as file:
            file.write(str(gap))
    last = now
"""
NESTED = "unshare -Ur sh -c 'echo > /srv/on; exec sleep 1000' & until [ -s /srv/on ]; do :; done"


@pytest.fixture
def session(home: Home, client: Client) -> Iterator[Session]:
    """A live session with a shell variable, and the file /srv/beat.py: a program that measures its longest freeze."""
    live = client.start("main", allow=["userns"])
    live.exec("kept=yes")
    live.run("sh", "-c", "cat > /srv/beat.py", stdin=BEAT.encode())
    yield live
    home.must("stop", "--all", "--discard")
    names = {name for capture in client.history.log(all=True) for name in capture.names}
    if names:
        client.history.remove(*names)


def check_message(text: str) -> None:
    """Check the parts of an error message."""
    assert re.match(r"waypoint: cannot \S+ .+: .+\n  next: \S.+", text), text


def check_log(home: Home, text: str) -> str:
    """Check the parts of an error message, and return the text of the log that the message names."""
    check_message(text)
    found = re.search(r"\(log: waypoint (doctor [^)]+)\)", text)
    assert found, text
    return home.must(*found[1].split()).stdout


def check_unharmed(home: Home, client: Client) -> None:
    assert client.session("main").exec("echo $kept").output == b"yes\n"
    ledger.check(home)


@pytest.mark.requires("userns")
@pytest.mark.soak(part="timing")
def test_a_dump_that_criu_refuses_harms_nothing(home: Home, client: Client, session: Session) -> None:
    session.exec("rm -f /srv/on /srv/gap; python3 /srv/beat.py & until [ -s /srv/gap ]; do :; done")
    session.exec(NESTED)
    begun = time.monotonic()
    refused = home.cli("checkpoint", "refused", "--tier", "live")
    assert time.monotonic() - begun < QUICK_S
    assert (refused.code, refused.stdout) == (5, "")
    assert "user namespace" in refused.stderr
    doctor = home.cli("doctor", "main")
    assert (doctor.code, "user namespace" in doctor.stdout) == (3, True)
    check_message(refused.stderr)
    assert "refused" not in home.must("log", "--all", "--json").stdout
    begun = time.monotonic()
    taken = session.checkpoint("taken")
    assert time.monotonic() - begun < QUICK_S
    assert taken.tier == "respawn"
    assert "user namespace" in taken.degraded[0]["text"]
    assert (taken.degraded[1]["code"], taken.degraded[1]["subject"]) == ("program-not-restartable", "sleep 1000")
    assert float(session.exec("cat /srv/gap").output) < 1.0
    check_unharmed(home, client)
    (copy,) = client.fork("taken", "copy")
    assert copy.exec("cat /srv/on; echo [$kept]").output == b"\n[yes]\n"


# Commands that would replace or end the session.
ENDINGS = {
    "restore": ["restore", "before"],
    "park": ["checkpoint", "parked", "--park"],
    "stop": ["stop", "main", "--checkpoint", "parked"],
    "undo": ["undo"],
}


@pytest.mark.requires("userns")
@pytest.mark.parametrize("verb", ENDINGS)
def test_verbs_that_would_lose_processes_refuse_without_consent(
    home: Home, client: Client, session: Session, verb: str
) -> None:
    session.checkpoint("before", tier="live")
    session.exec("kept=more; echo more > /srv/kept")
    session.restore("before")
    assert client.session("main").exec("echo $kept; kept=later; echo later > /srv/kept").output == b"yes\n"
    client.session("main").exec(NESTED)
    before = len(client.history.operations())
    refused = home.cli(*ENDINGS[verb])
    assert (refused.code, refused.stdout) == (5, "")
    assert "main" in refused.stderr.splitlines()[0]
    assert "user namespace" in refused.stderr
    check_message(refused.stderr)
    assert len(client.history.operations()) == before
    assert client.session("main").exec("echo $kept; cat /srv/kept").output == b"later\nlater\n"
    ledger.check(home)
    follow(home, refused.stderr)
    is_live = {row.branch for row in client.sessions()} == {"main"}
    assert is_live == (verb in ("restore", "undo"))
    assert client.start("main").exec("echo [$kept]; cat /srv/kept").output == {
        "restore": b"[yes]\ncat: /srv/kept: No such file or directory\n",
        "undo": b"[more]\nmore\n",
    }.get(verb, b"[later]\nlater\n")
    ledger.check(home)


def test_survey_and_doctor_report_processes_that_cannot_be_captured(session: Session, home: Home) -> None:
    """The process has opened its terminal as /dev/tty, which CRIU does not restore."""
    assert [(one.command, one.tier) for one in session.survey()][1:] == [
        ("/bin/bash --rcfile /.waypoint/hooks.bash -i", "live")
    ]
    assert [one["tier"] for one in home.must("doctor", "main", "--json").json()] == ["live", "live"]
    session.exec("sh -c 'exec 9</dev/tty; echo > /srv/on; exec sleep 1000' & until [ -s /srv/on ]; do :; done")
    (found,) = [one for one in session.survey() if one.tier != "live"]
    assert (found.command, found.code, found.why) == (
        "sleep 1000",
        "criu-dev-tty",
        f"sleep (pid {found.pid}, fd 9) keeps /dev/tty open, which CRIU cannot restore",
    )
    taken = session.checkpoint("taken")
    assert (taken.tier, taken.degraded[0]["subject"], taken.degraded[0]["detail"]) == ("respawn", found.code, found.why)


def follow(home: Home, said: str) -> Completed:
    """Run the command at the end of the error's next step."""
    command = said.rstrip().rpartition(": ")[2]
    assert command.startswith("waypoint "), said
    return home.must(*shlex.split(command)[1:])


def test_an_undo_that_ends_a_session_keeps_its_processes(home: Home, client: Client, session: Session) -> None:
    (other,) = client.fork("main", "f2")
    other.exec("kept=last")
    client.history.undo()
    (ended,) = [one for one in client.history.log(all=True) if one.branch == "f2" and one.reason == "checkpoint"]
    assert ended.tier == "live"
    (again,) = client.fork(ended.capture, "f3")
    assert again.exec("echo $kept").output == b"last\n"


@pytest.mark.requires("userns")
def test_losses_of_processes_are_reported_or_refused_inside_the_session_too(
    home: Home, client: Client, session: Session
) -> None:
    session.checkpoint("before", tier="live")
    session.exec(f"kept=more; {NESTED}")
    assert b"\ndegraded: without its processes: " in session.exec("waypoint checkpoint less").output
    refused = session.exec("waypoint restore before")
    assert refused.exit == 5
    command = refused.output.decode().rstrip().rpartition(": ")[2]
    assert command.startswith("waypoint restore ")
    assert session.exec(command).by == "waypoint", "the session was replaced"
    assert client.session("main").exec("echo $kept").output == b"yes\n"


def test_programs_are_started_again_if_their_processes_cannot_be_restored(tmp_path: Path) -> None:
    fails = tmp_path / "criu"
    with open_home("lower") as home:

        def use(criu: str) -> None:
            home.must("daemon", "stop")
            home.must("ps", env={"WAYPOINT_CRIU": criu})

        def fork(branch: str, why: str, code: str) -> None:
            refused = home.cli("fork", "here", branch, "--tier", "live")
            assert (refused.code, why in refused.stderr) == (5, True), refused
            (made,) = home.must("fork", "here", branch, "--json").json()
            assert [(one["code"], one["subject"]) for one in unusual(made["degraded"])] == [
                ("processes-not-restored", code)
            ]
            assert (made["respawned"], why in made["degraded"][0]["text"]) == (["sleep 1000"], True)
            assert home.must("exec", "-b", branch, "--", "echo $kept; pgrep -c sleep").stdout == "yes\n1\n"

        home.must("shell", "main", "-d")
        home.must("exec", "--", "kept=yes; sleep 1000 &")
        home.must("checkpoint", "here", "--tier", "live")
        fails.write_text("#!/bin/sh\nexit 1\n")
        fails.chmod(0o755)
        use(str(fails))
        fork("without-criu", "WAYPOINT_CRIU", "no-criu")
        doctor = home.cli("doctor", "main", "--json")
        assert (doctor.code, doctor.json()[0]["code"], {one["tier"] for one in doctor.json()}) == (
            3,
            "no-criu",
            {"respawn"},
        )

        # This CRIU dies in a restore as long as it finds a file that it can remove.
        criu = os.environ["WAYPOINT_CRIU"]
        fails.write_text(
            f'#!/bin/sh\n[ "$CRIU_FAULT" ] && {{ rm $0.1 || rm $0.2; }} 2>&- && exit 1\nexec {criu} "$@"\n'
        )
        use(str(fails))
        (tmp_path / "criu.1").touch()
        (made,) = home.must("fork", "here", "one-failure", "--json").json()
        assert (unusual(made["degraded"]), made["respawned"]) == ([], None)
        for number in "12":
            (tmp_path / f"criu.{number}").touch()
        (made,) = home.must("fork", "here", "two-failures", "--json").json()
        assert (made["degraded"][0]["subject"], made["respawned"]) == ("criu-died", ["sleep 1000"])
        use(criu)

        core = largest(images_of(home, "here"), "core-*.img")
        kept = core.read_bytes()
        core.write_bytes(b"\xff" * len(kept))
        fork("refused", "CRIU", "criu-other")
        core.write_bytes(kept)
        replaced = home.must("restore", "here")
        assert "degraded" not in replaced.stderr, replaced

        home.must("daemon", "stop")
        with contextlib.closing(sqlite3.connect(home.path / "names.db")) as db, db:
            here = f'"kernel":"{os.uname().release}"'
            db.execute("UPDATE captures SET record = replace(record, ?, ?)", (here, '"kernel":"1.0"'))
        fork("other-kernel", "captured with the kernel 1.0", "other-machine")
        replaced = home.must("restore", "here")
        assert "degraded: its processes were not restored, and its programs were started again: it " in replaced.stderr
        assert "started again: sleep 1000\n" in replaced.stderr


def test_a_parked_session_whose_processes_cannot_be_restored_keeps_its_files(home: Home, client: Client) -> None:
    live = client.start("main", net="host")
    live.exec("kept=yes; echo precious > /srv/precious")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        server.close()
        live.exec(
            f"python3 -m http.server -b 127.0.0.1 {port} & until curl -s 127.0.0.1:{port} > /srv/page; do :; done"
        )
        home.must("checkpoint", "parked", "--park")
    with socket.create_server(("127.0.0.1", port)):
        refused = home.cli("shell", "main", "--detach")
        assert (refused.code, refused.stdout) == (5, ""), refused
        assert str(port) in refused.stderr
        follow(home, refused.stderr)
    assert client.session("main").exec("echo [$kept]; cat /srv/precious").output == b"[]\nprecious\n"
    home.must("stop", "--all", "--discard")
    ledger.check(home)


def images_of(home: Home, name: str) -> Path:
    return home.path / "hot" / Client(home.path).history.show(name).capture / "images"


def truncate(file: Path, to: float) -> None:
    os.truncate(file, int(to if to > 1 else file.stat().st_size * to))


def remove_tree(home: Home, images: Path) -> None:
    daemon, tree = Client(home.path).status().pid, home.path / "pool" / images.parent.name
    enter = ["nsenter", "--mount", f"--target={daemon}"]
    subprocess.run([*enter, "btrfs", "-q", "subvolume", "delete", str(tree)], check=True)


def largest(images: Path, pattern: str) -> Path:
    return max(images.glob(pattern), key=lambda path: path.stat().st_size)


DAMAGES: dict[str, Callable[[Home, Path], object]] = {
    "half of the pages": lambda _, images: truncate(largest(images, "pages-*.img"), 0.5),
    "the end of a core": lambda _, images: truncate(largest(images, "core-*.img"), 100),
    "garbled core": lambda _, images: (core := largest(images, "core-*.img")).write_bytes(
        b"\xff" * core.stat().st_size
    ),
    "inventory": lambda _, images: (images / "inventory.img").unlink(),
    "images": lambda _, images: shutil.rmtree(images),
    "everything": lambda _, images: shutil.rmtree(images.parent),
    "tree": remove_tree,
}


@pytest.mark.soak(part="criu")
@pytest.mark.requires("btrfs")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_restore_of_a_damaged_capture_fails_and_harms_nothing(damage: str) -> None:
    with open_home("damaged") as home:
        client = Client(home.path)
        session = client.start("main")
        session.exec("kept=yes; sleep 1000 &")
        assert session.checkpoint("damaged", tier="live").tier == "live"
        images = images_of(home, "damaged")
        wait_until(lambda: not images.is_symlink(), "the images are on the disk")
        DAMAGES[damage](home, images)
        before = len(client.history.operations())
        for argv in (["fork", "damaged", "f1", "f2", "--tier", "live"], ["restore", "damaged", "--tier", "live"]):
            check_failure(
                home, home.cli(*argv), 5 if damage == "garbled core" else 10
            )  # only CRIU can detect this damage
            assert {row.branch for row in client.sessions()} == {"main"}
            assert session.exec("echo $kept").output == b"yes\n"
        assert len(client.history.operations()) == before
        assert {row.name for row in client.history.branches()} == {"main"}
        session.checkpoint("another", tier="live")
        (copy,) = client.fork("another", "f1")
        assert copy.exec("echo $kept").output == b"yes\n"
        ledger.check(home, expected="is on record and not there")


def check_failure(home: Home, done: Completed, code: int) -> None:
    assert done.code == code, done
    assert done.stdout == ""
    if code == 10:
        check_message(done.stderr)
        return
    log = check_log(home, done.stderr)
    assert "\n  next: read the log; `waypoint doctor` shows what works on this machine; to restore" in done.stderr
    assert done.stderr.partition("does not know: ")[2].partition("\n")[0] in log
    assert "live" in home.must("doctor").stdout
