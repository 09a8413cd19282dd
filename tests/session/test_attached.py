"""Files and folders that are attached to captures: kept as they are, in the image too, and given back."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.cli.conftest import daemon_pid
from tests.homes import Home, open_home
from tests.parcel.attachable import HOSTILE, folder, packed, picture
from tests.session.let_in import stop
from tests.waiting import wait_until
from waypoint.client.attached.upload import send_body
from waypoint.client.sdk import Client
from waypoint.model import plainjson
from waypoint.model.errors import Failed, StateConflict, UsageProblem, WaypointError
from waypoint.parcel.parcel_records import MOST_DEEP

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

__all__ = ["folder"]

LARGE_BYTES = 64 << 20  # it is longer on its way into the store than a bar takes to be drawn


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was changed a moment ago counts as old."""
    monkeypatch.setattr("waypoint.parcel.stamping._YOUNG_NS", 0)


def left_in(home: Home) -> list[str]:
    """What lies in the hot area and is no capture's."""
    return [one.name for one in (home.path / "hot").iterdir() if one.name.startswith(".") and one.name != ".names-db"]


def content(home: Home, capture: object, kind: str) -> Path:
    return home.path / "hot" / str(capture) / "attached" / kind / "content"


def test_they_are_kept_with_the_image_and_given_back(folder: Path, tmp_path: Path) -> None:
    """By the command line: a file, a folder, stdout; the image in the store alone has them, and is whole."""
    with open_home("attached") as home:
        home.must("shell", "-d", "main", "--cwd", "/srv")
        trace = tmp_path / "trace"
        trace.write_bytes(b"one\n")
        words = ("--attach", f"trace={trace}", "--attach", f"cache={folder}")
        kept = home.must("checkpoint", "a", *words, "--wait", "--json").json()
        wanted = picture(folder)
        trace.write_bytes(b"two\n")
        (folder / "x").write_bytes(b"later")
        found = home.must("layer", "list", "a", "--json").json()
        assert [(one["kind"], one["is_folder"], one["files"]) for one in found] == [
            ("cache", True, 6),
            ("trace", False, 1),
        ]
        shown = home.must("show", "a", "--json").json()["layers"]
        assert (shown["trace"]["size_bytes"], shown["cache"]["files"]) == (4, 6)
        assert home.must("evict", "a", "--json").json()["evicted"] == [kept["capture"]]
        assert not (home.path / "hot" / kept["capture"]).exists()
        assert home.must("layer", "get", "a", "trace", "-").stdout == "one\n"
        home.must("layer", "get", "a", "cache", str(tmp_path / "back"))
        assert picture(tmp_path / "back") == wanted
        refused = home.cli("layer", "get", "a", "trace", str(tmp_path / "back"))
        assert refused.code == 2
        assert "it is there already\n  next: choose another place, or --force" in refused.stderr
        check_what_force_replaces(home, tmp_path / "back")
        assert sorted(os.listdir(tmp_path)) == ["back", "top", "trace"]
        assert home.must("verify", "--read-data", "--json").json()["problems"] == []
        for words, said in (
            (("nosuch", "-"), "it has cache, trace\n  next: see what it has: waypoint layer list a"),
            (("cache", "-"), "it is a folder\n  next: name a place for it instead of -"),
        ):
            refused = home.cli("layer", "get", "a", *words)
            assert (refused.code, refused.stdout) == (2, "")
            assert said in refused.stderr
        assert left_in(home) == []
        large = tmp_path / "large"
        large.write_bytes(os.urandom(LARGE_BYTES))
        told = told_on_a_terminal(home, "checkpoint", "b", "--attach", f"cache={large}", "--wait")
        assert "\r\x1b[Kattach  " in told
        assert re.search(r"into the store  \[#*\.*\] \S+ MiB of \d+\.\d MiB", told), told
        assert told.endswith("\r\x1b[K")
        evicted_while_it_is_read(home, "b")


def told_on_a_terminal(home: Home, *words: str) -> str:
    """What the command writes to stderr, which is a terminal."""
    master, slave = os.openpty()
    try:
        with subprocess.Popen(home.argv(*words), env=home.env, stdout=subprocess.DEVNULL, stderr=slave) as command:
            os.close(slave)
            told = b""
            with contextlib.suppress(OSError):  # EIO: nobody has it open any more
                while piece := os.read(master, 4096):
                    told += piece
        assert command.returncode == 0, told
        return told.decode()
    finally:
        os.close(master)


def evicted_while_it_is_read(home: Home, name: str) -> None:
    """It stays as long as somebody reads it, though more is to be read than pipes and sockets hold."""
    with subprocess.Popen(
        home.argv("layer", "get", name, "cache", "-"), env=home.env, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(1)
        found = home.cli("evict", name, "--json").json()
        assert (found["evicted"], [one.partition(": ")[2] for one in found["kept"]]) == ([], ["it is in use"])
        assert len(reader.stdout.read()) == LARGE_BYTES - 1
    wait_until(lambda: home.cli("evict", name, "--json").json()["evicted"] != [], "nobody reads it any more")


def check_what_force_replaces(home: Home, back: Path) -> None:
    """A file no folder, with all in it, and a folder no file."""
    wanted = picture(back)
    refused = home.cli("layer", "get", "a", "trace", str(back), "--force")
    assert (refused.code, picture(back)) == (2, wanted)
    assert f"and trace of a is a file\n  next: name a place in it: {back}/trace\n" in refused.stderr
    for _ in range(2):
        home.must("layer", "get", "a", "trace", str(back / "trace"), "--force")
    refused = home.cli("layer", "get", "a", "cache", str(back / "trace"), "--force")
    assert (refused.code, "and cache of a is a folder\n  next: choose a place that is free" in refused.stderr) == (
        2,
        True,
    )
    assert (back / "trace").read_bytes() == b"one\n"
    home.must("layer", "get", "a", "cache", str(back), "--force")
    assert picture(back) == wanted


@pytest.mark.usefixtures("old")
def test_what_has_not_changed_is_shared(home: Home, folder: Path) -> None:
    with session(home, "root") as branch:
        live = Client(home.path).session(branch)
        first = live.checkpoint(f"{branch}-a", attach={"model": folder}).capture
        second = live.checkpoint(f"{branch}-b", attach={"model": folder}).capture
        (folder / "sub/tool").write_bytes(b"changed")
        third = live.checkpoint(f"{branch}-c", attach={"model": folder}).capture
        inodes = [(content(home, one, "model") / "x").stat().st_ino for one in (first, second, third)]
        assert inodes[0] == inodes[1] != inodes[2]
        assert picture(content(home, second, "model")).keys() == picture(folder).keys()
        assert [layer.files for layer in Client(home.path).layers.list(f"{branch}-b")] == [6]
        assert (content(home, third, "model") / "sub/tool").read_bytes() == b"changed"
        assert (content(home, second, "model") / "sub/tool").read_bytes() == b"#!"


def test_what_cannot_be_attached_costs_the_checkpoint_and_nothing_else(home: Home, folder: Path) -> None:
    with session(home, "root") as branch:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(folder / "sub/sock"))
        (folder / "/".join(["d"] * MOST_DEEP)).mkdir(parents=True)
        no_file = "neither a file nor a folder\n  next: copy what it has into a file"
        of_waypoint = (
            "it lies in a home of Waypoint, in which what is attached is kept, too\n  next: name another file or folder"
        )
        for word, code, said in (
            (f"x={folder}/nosuch", 2, "No such file or directory\n  next: name one that is there and that you may use"),
            (f"x={folder}", 125, "next: see what is there, and try again"),
            ("x=/dev/null", 2, no_file),
            (f"x={folder}/sub/sock", 2, no_file),
            (f"x={home.path}", 2, of_waypoint),
            (f"x={home.path}/config.json", 2, of_waypoint),
            ("x", 2, "it is not KIND=PATH\n  next: write, for instance, trace=run.jsonl"),
            ("files=/etc/passwd", 2, "by itself\n  next: use another kind, such as model, cache, trace or effects"),
        ):
            done = home.cli("checkpoint", f"{branch}-bad", "-b", branch, "--attach", word)
            assert done.code == code
            assert said in done.stderr
        assert home.cli("show", f"{branch}-bad").code == 2
        assert left_in(home) == []
        (folder / "copied").write_bytes(Path("/dev/null").read_bytes())
        home.must("checkpoint", f"{branch}-good", "-b", branch, "--attach", f"x={folder}/copied", "--tier", "files")
        assert inside(home, branch, "echo goes on") == "goes on\n"
        shutil.rmtree(folder / "d")
        words = ("--attach", f"x={folder}", "--attach", f"y={home.path.parent}", "--tier", "files")
        for name in ("one", "two"):  # the second shares what the first has
            made = home.must("checkpoint", f"{branch}-{name}", "-b", branch, *words)
            assert "degraded: attached as x without sub/sock: it is a socket\n" in made.stderr
            assert f"attached as y without {home.path.name}: it is a home of Waypoint\n" in made.stderr
        capture = home.must("show", f"{branch}-two", "--json").json()["capture"]
        assert home.path.name not in os.listdir(content(home, capture, "y"))
        added = home.must("layer", "attach", f"{branch}-two", f"x={folder}", f"z={folder}/copied")
        assert added.stderr == "left out of x: sub/sock: it is a socket\n"


def request(branch: str, *kinds: str, stamp: str = "", same: bool = False) -> bytes:
    layers = [{"kind": kind, "stamp": stamp, "same": same} for kind in kinds]
    return plainjson.encode({"checkpoint": {"name": f"{branch}-raw"}, "layers": layers}).encode() + b"\n"


def test_a_hostile_client_leaves_nothing(home: Home) -> None:
    """Parcels that are none, kinds that are paths, a claim to share what is not there, a body that is none."""
    with session(home, "root") as branch:

        def refused(kind: type[WaypointError], said: str, *pieces: bytes) -> None:
            with pytest.raises(kind) as caught:
                send_body(str(home.path), f"/v1/sessions/{branch}/checkpoint/attached", lambda: iter(pieces))
            assert said in f"{caught.value.said}\n{caught.value.next_step}"

        described = "send what docs/protocol.md, section 6, describes"
        for name in ("a name that leads up", "a link at the top", "a device", "something behind it"):
            refused(UsageProblem, described, request(branch, "x"), HOSTILE[name])
        refused(UsageProblem, described, b"no JSON\n")
        refused(UsageProblem, described, b"x" * 70_000)
        refused(UsageProblem, "slash", request(branch, "x/y"), b"")
        refused(UsageProblem, "each part starts", request(branch, "../x"), b"")
        refused(UsageProblem, "named twice\nuse another kind, such as", request(branch, "x", "x"), b"")
        refused(StateConflict, "another one by now", request(branch, "x", stamp="1", same=True))
        assert home.cli("show", f"{branch}-raw").code == 2
        assert left_in(home) == []


def test_nothing_is_left_of_a_daemon_or_a_client_that_is_killed_meanwhile(folder: Path) -> None:
    with open_home("killed-attaching") as other:
        other.must("shell", "-d", "main")
        target = "/v1/sessions/main/checkpoint/attached"

        def then(act: object) -> Iterator[bytes]:
            yield request("main", "model")
            yield packed(folder / "hole")[0]
            wait_until(lambda: list(other.path.glob("hot/.*/model")) != [], "a part of it is there")
            act()  # type: ignore[operator]
            yield from itertools.repeat(b"")

        def give_up() -> None:
            raise Failed("read", "it", "it cannot be read", "")

        with pytest.raises(Failed, match="cannot be read"):
            send_body(str(other.path), target, lambda: then(give_up))
        wait_until(lambda: left_in(other) == [], "the daemon has removed it")
        with pytest.raises(Failed):
            send_body(str(other.path), target, lambda: then(lambda: os.kill(daemon_pid(other), signal.SIGKILL)))
        other.must("ps")
        assert left_in(other) == []
        assert other.cli("show", "main-raw").code == 2
        assert other.must("gc", "--json").json()["strangers"] == []


def check_attached_from_inside(shared: Home, person: Person) -> None:
    """Paths are the session's own, opened as its user: what that may not read, and what is no file, is refused."""

    def asks(words: str, code: int = 0) -> str:
        done = person.can(shared, "exec", "-b", "theirs", "--", f"cd; waypoint {words} 2>&1")
        assert done.returncode == code, done
        return done.stdout

    asks_for = "mkdir -p d; echo 1 > d/f; ln -sf ~/d link; mkfifo d/fifo; ln -s /etc/shadow away; echo theirs > /tmp/f"
    assert person.can(shared, "exec", "-b", "theirs", "--", f"cd; {asks_for}").returncode == 0
    usable = "name one that is there and that the session's user may read"
    for path, code, said in (
        ("/etc/shadow", 2, f"Permission denied\n  next: {usable}"),
        ("$PWD/away", 2, "Permission denied"),
        ("$PWD/nosuch", 2, f"No such file or directory\n  next: {usable}"),
        ("d/f", 2, 'inside a session a path begins with /\n  next: begin it with the folder: "x=$PWD/d/f"'),
        ("$PWD/d/fifo", 2, "it is neither a file nor a folder"),
        ("/dev/null", 2, "it is neither a file nor a folder"),
        ("/proc/1/environ", 125, "it is a view of the kernel's"),
    ):
        assert said in asks(f"checkpoint bad --attach x={path}", code)
    assert "degraded: attached as x without fifo: it is a FIFO\n" in asks("checkpoint without --attach x=$PWD/d")
    assert person.can(shared, "exec", "-b", "theirs", "--", "rm ~/d/fifo").returncode == 0
    assert asks("checkpoint inner --attach x=$PWD/link --attach y=/tmp/f").startswith("checkpointed inner")
    assert asks("layer list inner") == "x  2  folder\ny  7  file\n"
    assert asks("layer get inner y -") == "theirs\n"
    assert "it is a folder\n  next: get it outside of the session: waypoint layer get inner x DEST" in asks(
        "layer get inner x -", 2
    )
    assert "have the shell write it: waypoint layer get inner y - > DEST" in asks("layer get inner y f", 2)
    assert "Permission denied" in asks("layer attach inner z=/etc/shadow", 2)
    assert "attach to a checkpoint of it" in asks("layer attach theirs z=/tmp/f", 4)
    assert re.fullmatch(r"inner  [0-9a-f]+  x y z\n", asks("layer attach inner z=/tmp/f"))
    assert asks("layer get inner z -") == asks("layer get inner y - > got; cat got") == "theirs\n"
    assert person.can(shared, "fork", "inner", "other").returncode == 0
    done = person.can(shared, "exec", "-b", "other", "--", "waypoint layer attach inner z=/tmp/f")
    assert (done.returncode, "it is another branch's" in done.stdout) == (4, True)
    assert person.can(shared, "stop", "other", "--discard").returncode == 0
    assert person.can(shared, "layer", "get", "inner", "y", "-").stdout == "theirs\n"
    assert person.can(shared, "layer", "get", "inner", "x", str(person.home / "inner")).returncode == 0
    assert (person.home / "inner/f").read_text() == "1\n"
    assert "(attach): let inner be " in asks("undo")
    assert asks("layer list inner") == "x  2  folder\ny  7  file\n"
    made = person.can(shared, "exec", "-b", "theirs", "--", "head -c 4194304 /dev/urandom >/tmp/big")
    assert made.returncode == 0
    assert re.fullmatch(r"inner  [0-9a-f]+  big x y\n", asks("layer attach inner big=/tmp/big"))
    assert asks("layer get inner big - | cmp - /tmp/big && echo same") == "same\n"


@pytest.mark.requires("public-checkout")
def test_a_user_attaches_what_they_may_read_and_gets_what_is_theirs(
    shared: Home, person: Person, tmp_path: Path
) -> None:
    own = person.home / "trace"
    own.write_text("mine\n")
    os.chown(own, person.uid, person.gid)
    assert person.can(shared, "shell", "-d", "theirs").returncode == 0
    try:
        done = person.can(shared, "checkpoint", "bad", "-b", "theirs", "--attach", "x=/etc/shadow")
        assert done.returncode == 2
        assert "/etc/shadow: Permission denied" in done.stderr
        assert person.can(shared, "checkpoint", "good", "-b", "theirs", "--attach", f"trace={own}").returncode == 0
        assert person.can(shared, "layer", "get", "good", "trace", "-").stdout == "mine\n"
        assert person.can(shared, "layer", "get", "good", "trace", str(person.home / "back")).returncode == 0
        assert (person.home / "back").stat().st_uid == person.uid
        check_attached_from_inside(shared, person)
        with session(shared, "root") as branch:
            secret = tmp_path / "secret"
            secret.write_text("root's\n")
            shared.must("checkpoint", f"{branch}-a", "-b", branch, "--attach", f"trace={secret}")
            for words in (("get", f"{branch}-a", "trace", "-"), ("list", f"{branch}-a")):
                done = person.can(shared, "layer", *words)
                assert (done.returncode, done.stdout) == (3, "")
            done = person.can(shared, "checkpoint", "bad", "-b", branch, "--attach", f"trace={own}")
            assert done.returncode == 3
    finally:
        stop(shared, "theirs")
    assert left_in(shared) == []
