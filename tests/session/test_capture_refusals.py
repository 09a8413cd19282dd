"""Dumps that CRIU refuses, restores that fail: told in words, and nothing happens to the session."""

import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.homes import Completed, Home, empty, open_home
from tests.ports import free_port
from tests.session import ledger
from waypoint.client import Client, Session
from waypoint.processes.criu.messages import Field, Message, decode, replace_number

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

QUICK_S = 5.0  # two tries, of which the second one writes a long log
BEAT = """
import os, time
gap, last = 0.0, time.monotonic()
while True:
    time.sleep(0.005)
    now = time.monotonic()
    if now - last > gap:
        gap = now - last
        with open("/srv/gap.new", "w") as file:
            file.write(str(gap))
        os.replace("/srv/gap.new", "/srv/gap")
    last = now
"""
THERE = "until pgrep -fx 'sleep 1000'; do :; done"
NESTED = f"unshare -Ur sleep 1000 & {THERE}"
REFUSED = {
    "traced": pytest.param(
        f"strace -o /dev/null sleep 1000 & {THERE}",
        "traced by strace",
        marks=pytest.mark.requires("strace"),
        id="a traced process",
    ),
    "nested": pytest.param(
        NESTED,
        "user namespace",
        marks=pytest.mark.requires("userns"),
        id="a nested user namespace",
    ),
}


@pytest.fixture
def session(home: Home, client: Client) -> Iterator[Session]:
    """Live, with a variable, and a program that knows for how long it has stood still."""
    live = client.start("main", allow=["userns"])
    live.exec("kept=yes")
    live.run("sh", "-c", "cat > /srv/beat.py", stdin=BEAT.encode())
    yield live
    home.must("stop", "--all", "--discard")
    names = {name for capture in client.history.log(all=True) for name in capture.names}
    if names:
        client.history.remove(*names)


def check_message(text: str) -> Path | None:
    """It has four parts. The path of the log that it names, which exists."""
    assert re.match(r"waypoint: cannot \S+ .+: .+\n  next: \S.+", text), text
    found = re.search(r"\(log: ([^)]+)\)", text)
    return Path(found[1]) if found else None


def check_unharmed(home: Home, client: Client) -> None:
    assert client.session("main").exec("echo $kept").output == b"yes\n"
    ledger.check(home)


@pytest.mark.parametrize(("command", "said"), REFUSED.values())
@pytest.mark.alone("measures a time that a busy processor lengthens")
def test_a_dump_that_criu_refuses_harms_nothing(
    home: Home, client: Client, session: Session, command: str, said: str
) -> None:
    session.exec("rm -f /srv/on /srv/gap; python3 /srv/beat.py & until [ -s /srv/gap ]; do :; done")
    session.exec(command)
    begun = time.monotonic()
    refused = home.cli("checkpoint", "refused", "--tier", "live")
    assert time.monotonic() - begun < QUICK_S
    assert (refused.code, refused.stdout) == (5, "")
    assert said in refused.stderr
    surveyed = {one.command: one for one in session.survey() if one.tier != "live"}
    assert said in surveyed.pop("sleep 1000").why
    assert {one.why for one in surveyed.values()} == ({"it traces sleep"} if "traced" in said else set())
    doctor = home.cli("doctor", "main")
    assert (doctor.code, said in doctor.stdout) == (0, True), "all others can be kept"
    log = check_message(refused.stderr)
    assert log is None or len(log.read_text().splitlines()) > 20, "the second try tells all"
    assert "refused" not in home.must("log", "--all", "--json").stdout
    begun = time.monotonic()
    taken = session.checkpoint("taken")
    assert time.monotonic() - begun < QUICK_S
    assert taken.tier == "live"
    (left_out,) = taken.degraded
    assert "it is ended in copies" in left_out
    assert ("it traces sleep" if "traced" in said else said) in left_out
    assert ("not started again (it had other rights than the shell" in left_out) == (command == NESTED)
    assert float(session.exec("cat /srv/gap").output) < 1.0
    check_unharmed(home, client)
    (copy,) = client.fork("taken", "copy")
    assert copy.exec("cat /srv/on; echo [$kept]").output.endswith(b"\n[yes]\n")
    assert copy.exec("pgrep -fc '[b]eat.py'").output == b"1\n"


# What would replace or end the session, by verb, with the ways that the answer to a refusal may offer.
ENDINGS = {
    "restore": ["restore", "before"],
    "park": ["checkpoint", "parked", "--park"],
    "stop": ["stop", "main", "--checkpoint", "parked"],
    "undo": ["undo"],
}


@pytest.mark.requires("userns")
@pytest.mark.parametrize("verb", ENDINGS)
def test_who_would_end_what_cannot_be_kept_refuses_until_that_is_agreed_to(
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
    log = check_message(refused.stderr)
    assert log is not None
    assert log.read_text()
    assert len(client.history.operations()) == before
    assert client.session("main").exec("echo $kept; cat /srv/kept").output == b"later\nlater\n"
    ledger.check(home)
    follow(home, refused.stderr)
    is_live = {row.branch for row in client.sessions()} == {"main"}
    assert is_live == (verb in ("restore", "undo"))
    said = client.start("main").exec("echo [$kept]; cat /srv/kept").output
    # Of what was left out the shell says itself that it was killed.
    assert re.fullmatch(
        {
            "restore": rb"\[yes\]\r?\ncat: /srv/kept: No such file or directory\r?\n",
            "undo": rb"\[more\]\nmore\n",
        }.get(verb, rb"\[later\]\nlater\n\[\d\][+-] +Killed +unshare [^\n]+\n"),
        said,
    ), said
    ledger.check(home)


def test_a_survey_tells_what_could_not_be_kept_before_anybody_captures_it(session: Session, home: Home) -> None:
    """Of what keeps the terminal under the name that CRIU does not restore."""
    assert [(one.command, one.tier) for one in session.survey()][1:] == [
        ("/bin/bash --rcfile /.waypoint/hooks.bash -i", "live")
    ]
    assert [one["tier"] for one in home.must("doctor", "main", "--json").json()] == ["live", "live"]
    session.exec(f"sh -c 'exec 9</dev/tty; exec sleep 1000' & {THERE}")
    (found,) = [one for one in session.survey() if one.tier != "live"]
    assert (found.command, found.why) == ("sleep 1000", "it keeps /dev/tty open (fd 9)")
    taken = session.checkpoint("taken")
    assert (taken.tier, "/dev/tty" in taken.degraded[0]) == ("live", True)


HOARD = """
import os, time
held = [os.dup(0) for _ in range(10_000)]
for _ in range(55):
    if not os.fork():
        time.sleep(1000)
open('/srv/on', 'w').write('x')
time.sleep(1000)
"""


def test_a_survey_looks_at_no_more_open_files_than_a_capture(session: Session, home: Home) -> None:
    """Else it would take minutes, of many of which all others feel something."""
    session.exec(f"python3 -c {shlex.quote(HOARD)} & until [ -s /srv/on ]; do :; done")
    for words in (("doctor", "main"), ("checkpoint", "taken", "-b", "main")):
        done = home.cli(*words)
        assert (done.code, "they have more than 500000 open files" in done.stderr) == (5, True), done


def follow(home: Home, said: str) -> Completed:
    """Execute the command with which the next step of a message ends."""
    command = said.rstrip().rpartition("  next: ")[2].partition("\n")[0].rpartition(": ")[2]
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
def test_a_session_that_asks_to_be_replaced_gets_the_same_answers(home: Home, client: Client, session: Session) -> None:
    session.checkpoint("before", tier="live")
    session.exec(f"kept=more; {NESTED}")
    assert b"it is ended in copies" in session.exec("waypoint checkpoint less").output
    refused = session.exec("waypoint restore before")
    assert refused.exit == 5
    command = refused.output.decode().rstrip().rpartition(": ")[2]
    assert command.startswith("waypoint restore ")
    assert session.exec(command).by == "waypoint", "the session was replaced"
    assert client.session("main").exec("echo $kept").output == b"yes\n"


def test_a_parked_session_whose_processes_cannot_come_back_has_a_way_back(home: Home, client: Client) -> None:
    live = client.start("main", net="host")
    live.exec("kept=yes; echo precious > /srv/precious")
    port = free_port()
    live.exec(f"python3 -m http.server -b 127.0.0.1 {port} & until curl -s 127.0.0.1:{port} > /srv/page; do :; done")
    home.must("checkpoint", "parked", "--park")
    with socket.create_server(("127.0.0.1", port)):
        refused = home.cli("shell", "main", "--detach")
        assert (refused.code, refused.stdout) == (5, ""), refused
        assert str(port) in refused.stderr
        follow(home, refused.stderr)
    again = client.session("main")
    again.exec("true")  # bash tells beside this that the server, which was started again, found its port taken
    assert again.exec("echo [$kept]; cat /srv/precious").output == b"[yes]\nprecious\n"
    home.must("stop", "--all", "--discard")
    ledger.check(home)


def images_of(home: Home, name: str) -> Path:
    return home.images(Client(home.path).history.show(name).capture)


def truncate_pages(home: Home, images: Path) -> None:
    pages = max(images.glob("pages-*.img"), key=lambda path: path.stat().st_size)
    with pages.open("r+b") as file:
        file.truncate(pages.stat().st_size // 2)


def truncate_core(home: Home, images: Path) -> None:
    core = next(images.glob("core-*.img"))
    with core.open("r+b") as file:
        file.truncate(100)


def garble_core(home: Home, images: Path) -> None:
    """A damage that nobody but CRIU can see."""
    core = next(images.glob("core-*.img"))
    core.write_bytes(b"\xff" * core.stat().st_size)


BEGIN = (8, 12)
"""Where the first message of an image begins: behind one magic number or two, and its size."""


def forge(file: Path, path: tuple[int, ...], number: int) -> None:
    """Give the number at `path` in the first message of an image another value, which takes as many bytes."""
    content = file.read_bytes()
    start = BEGIN[file.name != "inventory.img"]
    end = start + int.from_bytes(content[start - 4 : start], "little")
    forged = replace_number(content[start:end], path, number)
    assert len(forged) == end - start
    assert forged != content[start:end]
    file.write_bytes(content[:start] + forged + content[end:])


def forge_filter(home: Home, images: Path) -> None:
    """CRIU then makes them without a filter of system calls: core_entry.thread_core.seccomp_mode."""
    for core in images.glob("core-*.img"):
        forge(core, (5, 11), 0)


def forge_user_namespace(home: Home, images: Path) -> None:
    """CRIU then makes none, as if it were in theirs: inventory_entry.root_ids.user_ns_id."""
    content = (images / "ids-1.img").read_bytes()[BEGIN[True] :]
    own = decode(Message({"user_ns_id": Field(10, "uint32")}), content)["user_ns_id"]
    assert isinstance(own, int)
    forge(images / "inventory.img", (3, 10), own)


def remove_inventory(home: Home, images: Path) -> None:
    (images / "inventory.img").unlink()


def remove_images(home: Home, images: Path) -> None:
    shutil.rmtree(images)


def remove_all(home: Home, images: Path) -> None:
    shutil.rmtree(home.path / "hot" / images.parent.name)
    shutil.rmtree(images.parent, ignore_errors=True)


def remove_tree(home: Home, images: Path) -> None:
    daemon = Client(home.path).status().pid
    tree = home.path / "pool" / images.parent.name
    subprocess.run(
        ["nsenter", "--mount", f"--target={daemon}", "btrfs", "-q", "subvolume", "delete", str(tree)], check=True
    )


DAMAGES: list[Callable[[Home, Path], None]] = [
    truncate_pages,
    truncate_core,
    garble_core,
    forge_filter,
    forge_user_namespace,
    remove_inventory,
    remove_images,
    remove_all,
    remove_tree,
]

FORGED = {
    forge_filter: "one of them would have no filter of system calls",
    forge_user_namespace: "their processes have no namespace user of their own",
}


@pytest.fixture(scope="module")
def with_damages() -> Iterator[Home]:
    """What the captures have that were damaged in it need not be there."""
    with open_home("damaged") as home:
        yield home


@pytest.mark.requires("btrfs")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_restore_of_a_damaged_capture_fails_in_words_and_harms_nothing(
    with_damages: Home, damage: Callable[[Home, Path], None]
) -> None:
    home, client = with_damages, Client(with_damages.path)
    session = client.start("main")
    session.exec("kept=yes; sleep 1000 &")
    assert session.checkpoint("damaged", tier="live").tier == "live"
    damage(home, images_of(home, "damaged"))
    before = len(client.history.operations())
    for argv in (["fork", "damaged", "f1", "f2"], ["restore", "damaged"]):
        done = home.cli(*argv)
        check_failure(home, done, 5 if damage is garble_core else 10)
        assert FORGED.get(damage, "") in done.stderr, done.stderr
        assert {row.branch for row in client.sessions()} == {"main"}
        assert session.exec("echo $kept").output == b"yes\n"
    assert len(client.history.operations()) == before
    assert {row.name for row in client.history.branches()} == {"main"}
    session.checkpoint("another", tier="live")
    (copy,) = client.fork("another", "f1")
    assert copy.exec("echo $kept").output == b"yes\n"
    left = ledger.differences(home)
    assert all("is on record and not there" in one for one in left), left
    empty(home)


def check_failure(home: Home, done: Completed, code: int) -> None:
    assert done.code == code, done.stderr
    assert done.stdout == ""
    log = check_message(done.stderr)
    if code == 10:
        return
    assert "\n  next: read the log; `waypoint doctor` shows what works on this machine; for its files" in done.stderr
    assert log is not None
    assert done.stderr.partition("does not know: ")[2].partition("\n")[0] in log.read_text()
    assert "live" in home.must("doctor").stdout
