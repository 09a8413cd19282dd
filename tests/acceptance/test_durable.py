"""A checkpoint that is asked to be durable is an image in the home's store, with all that it consists of."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, session
from tests.cli.conftest import daemon_pid
from tests.corner import corner as corner
from tests.homes import Home, open_home
from tests.session.full_disks import fill, make_room
from tests.session.full_disks import small_disk as small_disk
from tests.upper.pictures import picture
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.storing.image_manifest import read_manifest
from waypoint.linux.storage import files
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, procfs
from waypoint.model.ids import is_id
from waypoint.store.content.opened import Store, open_store
from waypoint.store.content.store_folder import WRITER
from waypoint.store.trees.bringing import Bringing

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

PROGRAM = "python3 -c 'import time; kept = bytearray(b\"abc\") * 5000000; time.sleep(1000)' & sleep 0"


@pytest.fixture
def branch(home: Home) -> Iterator[str]:
    with session(home, "root", "--cwd", "/srv") as name:
        yield name


@contextlib.contextmanager
def store_of(home: Home) -> Iterator[Store]:
    with contextlib.closing(open_store(str(home.path / "store"))) as store:
        yield store


def keep(home: Home, name: str, branch: str, *options: str) -> dict[str, object]:
    kept: dict[str, object] = home.must("checkpoint", name, "-b", branch, "--wait", "--json", *options).json()
    assert kept["durable"] is True
    assert len(str(kept["image"])) == 64
    return kept


def packs_bytes(home: Home) -> int:
    return sum(path.stat().st_size for path in (home.path / "store/packs").iterdir())


def timeless(folder: Path) -> dict[bytes, tuple[object, ...]]:
    """All of what is in the folder, but for the times."""
    return {name: facts[:3] + facts[4:] for name, facts in picture(folder).items()}


def test_what_is_in_the_store_is_what_was_captured(home: Home, branch: str, tmp_path: Path) -> None:
    """CRIU's images, byte by byte, and the files: with owners, attributes and whiteouts."""
    inside(
        home, branch, f"{PROGRAM}; rm /etc/hostname; echo mine > made; chmod 4711 made; ln made other; touch /dev/shm/x"
    )
    kept = keep(home, f"{branch}-a", branch, "--tier", "live")
    shown = home.must("show", f"{branch}-a", "--json").json()
    assert (shown["image"], shown["durable"]) == (kept["image"], True)
    with store_of(home) as store, store.reading() as reader:
        manifest = read_manifest("", store.images.read(str(kept["image"])).manifest)
        assert set(manifest.parts) == {"files", "processes", "memory", "rest", "base"}
        for part, stored in manifest.parts.items():
            folder = tmp_path / part
            folder.mkdir()
            with open_folder(folder) as fd:
                Bringing(reader, bytes.fromhex(stored.root)).to(fd)
    hot = home.path / "hot" / str(kept["capture"])
    assert timeless(tmp_path / "processes") == timeless(home.images(str(kept["capture"])))
    assert timeless(tmp_path / "rest/terminal") == timeless(hot / "terminal")
    assert (tmp_path / "rest/programs.json").read_bytes() == (hot / "programs.json").read_bytes()
    assert os.listdir(tmp_path / "memory") == ["x"]
    shell = os.path.realpath("/bin/bash")
    assert (tmp_path / f"base/m0{shell}").read_bytes() == Path(shell).read_bytes()
    assert (tmp_path / f"base/m0{shell}").stat().st_mtime_ns == os.stat(shell).st_mtime_ns
    upper = tmp_path / "files/m0/upper"
    assert (upper / "srv/made").stat().st_mode & 0o7777 == 0o4711
    assert (upper / "srv/made").stat().st_ino == (upper / "srv/other").stat().st_ino
    assert (upper / "etc/hostname").is_char_device()


def test_either_id_will_do_wherever_a_name_is_asked_for(home: Home, branch: str, tmp_path: Path) -> None:
    inside(home, branch, "echo mine > /srv/made")
    (tmp_path / "trace").write_text("what it did")
    kept = keep(home, f"{branch}-a", branch, "--tier", "files", "--attach", f"trace={tmp_path / 'trace'}")
    ident, capture, new = str(kept["image"])[:12], str(kept["capture"]), f"{branch}-new"
    out, mounted = tmp_path / "out", tmp_path / "mounted"
    mounted.mkdir()
    commands = {
        ("show", capture[:4]): capture,
        ("show", ident): capture,
        ("log", ident): capture[:8],
        ("diff", "--machine", ident, "--", "/srv"): "/srv/made",
        ("diff", branch, ident, "--", "/srv"): "",
        ("apply", ident, "--dry-run", "--", "/srv"): "/srv/made",
        ("cat", f"{ident}:/srv/made"): "mine\n",
        ("cp", f"{ident}:/srv/made", str(out)): "",
        ("layer", "list", ident): "trace",
        ("layer", "get", ident, "trace", "-"): "what it did",
        ("du", ident): "",
        ("export", ident, "--alone", f"{out}.wpx"): "",
        ("evict", ident): capture[:8],
        ("fork", ident, f"{new}-f"): f"{new}-f",
        ("restore", ident, "--new", f"{new}-r"): "",
        ("shell", f"{new}-s", "-d", "--from", ident): "",
        ("restore", ident, "-b", branch, "--only", "files"): "",
    }
    home.must("mount", ident, str(mounted))
    subprocess.run(["umount", "-R", mounted], check=True)
    for words, said in commands.items():
        assert said in home.must(*words).stdout, words
    assert out.read_text() == "mine\n"
    home.must("stop", *(f"{new}-{how}" for how in "frs"), "--discard")


def test_what_has_not_changed_costs_little(home: Home, branch: str) -> None:
    inside(home, branch, f"{PROGRAM}; mkdir many; for n in $(seq 500); do echo $n > many/$n; done")
    first = keep(home, f"{branch}-a", branch)
    before = packs_bytes(home)
    inside(home, branch, "echo changed > many/7")
    second = keep(home, f"{branch}-b", branch)
    assert first["image"] != second["image"]
    assert packs_bytes(home) - before < 100_000
    found = home.must("verify", "--read-data", "--json").json()
    assert found["problems"] == []
    assert found["images"] >= 2


def test_what_a_checkpoint_goes_on_from_is_put_first(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-a", "-b", branch)
    assert home.must("show", f"{branch}-a", "--json").json()["durable"] is False
    home.must("checkpoint", f"{branch}-b", "-b", branch)
    kept = keep(home, f"{branch}-c", branch)
    images = [home.must("show", f"{branch}-{name}", "--json").json()["image"] for name in "abc"]
    assert images[2] == kept["image"]
    with store_of(home) as store:
        parents = [read_manifest("", store.images.read(image).manifest).parents for image in images]
    assert parents[1:] == [[images[0]], [images[1]]]


PUT_BACK, GC = "put the store's files back from a backup, or give it up ", "gc with --keep-operations 0"


def test_a_pack_that_is_damaged_is_told_and_what_needs_it_can_be_given_up() -> None:
    with open_home("damaged") as other:
        other.must("shell", "-d", "main")
        inside(other, "main", "head -c 3000000 /dev/urandom > /srv/large")
        kept = keep(other, "a", "main", "--tier", "live")
        check_told_of_missing(other)
        check_told_of_missing_packs(other, f"{PUT_BACK}(waypoint rm a; {GC})")
        assert (other.path / "hot" / str(kept["capture"])).exists()
        assert other.must("evict", "a", "--json").json()["evicted"] == [kept["capture"]]
        other.must("restore", "a")
        other.must("verify")
        pack = max((other.path / "store/packs").iterdir(), key=lambda path: path.stat().st_size)
        content = bytearray(pack.read_bytes())
        content[len(content) // 3] ^= 1
        pack.write_bytes(content)
        done = other.cli("evict", "a")  # which is the first to read it again
        assert (done.code, "(a, main): a " in done.stderr) == (10, True), done.stderr
        assert (other.path / "hot" / str(kept["capture"])).exists()
        done = other.cli("verify", "--read-data")
        assert done.code == 10
        assert f"damaged: {pack}: its bytes are not those that were written" in done.stderr
        step = f"{PUT_BACK}(waypoint checkpoint NEW -b main; waypoint rm a; {GC})"
        again = "have it put again by the next checkpoint with the same content: waypoint checkpoint NEW --wait; or "
        assert done.stderr.endswith(f"  next: {again}{step}\n"), done.stderr
        assert re.search(r"damaged: image \w{16} \(a, main\): a \w+ of it is damaged: \w{16}", done.stderr), done.stderr
        for names in (["a"], ["--all"]):
            done = other.cli("evict", *names)
            assert (done.code, done.stdout, "(a, main): a " in done.stderr) == (10, "", True), done.stderr
        assert "store, but damaged there: a " in other.must("show", "a").stdout
        other.must("fork", "a", "whole")  # which is what it would have cost
        other.must("stop", "whole", "--discard")
        keep(other, "again", "main")
        other.must("verify", "--read-data")
        assert "survives a power loss" in other.must("show", "a").stdout
        step = step.replace("rm a", "rm a again")
        max((other.path / "store/packs").iterdir(), key=lambda path: path.stat().st_size).unlink()
        done = other.cli("verify")
        assert done.code == 10
        assert "is not there" in done.stderr
        failed = other.cli("gc", "--json").json()["failed"]
        assert [said.partition("; next: ")[2] for said in failed] == [f"{step}, and start the gc again"]
        other.must("checkpoint", "new", "-b", "main")
        other.must("rm", "a", "again")
        assert other.must("gc", "--keep-operations", "0", "--json").json()["failed"] == []
        keep(other, "newer", "main")
        assert other.cli("verify", "--read-data").code == 0


def check_told_of_missing(home: Home) -> None:
    """A store that is gone is no reason to make another one, with other keys."""
    (home.path / "store").rename(home.path / "away")
    (home.path / "store").mkdir()  # as a disk that is not mounted leaves it
    out = str(home.path / "out")
    for words in (["verify"], ["checkpoint", "x", "-b", "main", "--wait"], ["export", "a", out]):
        done = home.cli(*words)
        assert (done.code, "it is gone, and names.db knows" in done.stderr) == (10, True), done.stderr
    (home.path / "store").rmdir()
    (home.path / "away").rename(home.path / "store")


def check_told_of_missing_packs(home: Home, step: str) -> None:
    packs = home.path / "store/packs"
    packs.rename(home.path / "away")
    packs.mkdir()
    done = home.cli("evict", "a")
    assert (done.code, "see the rest: 'waypoint verify --read-data'" in done.stderr) == (10, True), done.stderr
    done = home.cli("verify")
    assert (done.code, done.stderr.endswith(f"  next: {step}\n")) == (10, True), done.stderr
    packs.rmdir()
    (home.path / "away").rename(packs)


def test_gc_gives_back_what_no_capture_needs() -> None:
    with open_home("given") as other:
        other.must("shell", "-d", "main")
        keep(other, "small", "main", "--tier", "files")
        with store_of(other) as store:
            assert len(store.images.list()) == 1
        before = packs_bytes(other)
        other.must("exec", "--", "head -c 30000000 /dev/urandom > /srv/large")
        keep(other, "large", "main", "--tier", "files")
        assert packs_bytes(other) > before + 30_000_000
        assert other.must("du", "--json").json()["stored_bytes"] > before + 30_000_000
        other.must("restore", "small")
        other.must("rm", "large")
        freed = other.must("gc", "--keep-operations", "0s", "--json").json()
        assert freed["failed"] == []
        assert freed["freed_bytes"] > 30_000_000
        assert packs_bytes(other) < before + 2_000_000
        assert other.must("verify", "--read-data", "--json").json()["problems"] == []


def test_a_daemon_that_is_killed_meanwhile_leaves_a_store_that_goes_on() -> None:
    with open_home("killed") as other:
        other.must("shell", "-d", "main")
        other.must("exec", "--", "head -c 150000000 /dev/urandom > /srv/large")
        with other.background("checkpoint", "a", "--wait") as waiting:
            wait_until(lambda: list(other.path.glob("store/tmp/*")) != [], "it is being put there", PATIENCE_S)
            os.kill(daemon_pid(other), signal.SIGKILL)
            _, said = waiting.communicate(timeout=PATIENCE_S)
            assert (waiting.returncode, b"the daemon closed the connection" in said) == (125, True), said
        wait_until(lambda: home_is_idle(other), "the program for it has ended", PATIENCE_S)
        assert other.must("show", "a", "--json").json()["durable"] is False
        kept = keep(other, "b", "main")
        assert list(other.path.glob("store/tmp/*")) == []
        assert other.must("show", "a", "--json").json()["durable"] is True
        assert other.must("verify", "--read-data", "--json").json()["problems"] == []
        with store_of(other) as store:
            assert str(kept["image"]) in store.images.list()


def home_is_idle(home: Home) -> bool:
    """Nobody writes to the store. Whoever asked it for that would clean up there."""
    with contextlib.suppress(BlockingIOError):
        os.close(files.lock(str(home.path / "store/locks" / WRITER), wait=False))
        return True
    return False


def test_a_full_disk_is_told_and_loses_nothing(small_disk: Home, tmp_path: Path) -> None:
    home = small_disk
    home.must("shell", "-d", "main")
    home.must("exec", "--", "head -c 50000000 /dev/urandom > /srv/large")
    fill(home, reserve=True)
    done = home.cli("checkpoint", "a", "--wait", "--tier", "files")
    assert done.code == 125
    assert "No space left on device (the checkpoint a is made; it may not survive a power loss)" in done.stderr
    assert home.must("show", "a", "--json").json()["durable"] is False
    make_room(home)
    inside(home, "main", "rm /srv/large; kept=$(head -c 6M /dev/urandom | base64 -w0); echo ${#kept} > /srv/length")
    keep(home, "b", "main", "--tier", "live")
    assert home.must("show", "a", "--json").json()["durable"] is True
    home.must("export", "b", "--alone", str(tmp_path / "b"))
    home.must("rm", "a")
    home.must("evict", "b")
    fill(home, reserve=True)
    refused = {
        ("cat", "b:/srv/length"): "No space left on device",
        ("import", str(tmp_path / "b"), "--as", "came"): "the disk of the home has no room for it",
        ("layer", "attach", "b", f"other={tmp_path}/b"): "No space left on device",
    }
    for words, said in refused.items():
        done = home.cli(*words)
        assert (done.code, said in done.stderr) == (125, True), done.stderr
    home.must("export", "b", "--alone", str(tmp_path / "again"))  # what only reads the store goes on
    assert home.must("verify", "--read-data", "--json").json()["problems"] == []
    home.must("gc", "--keep-operations", "0")
    assert [path.name for path in (home.path / "hot").iterdir() if is_id(path.name[1:])] == []
    make_room(home)
    home.must("import", str(tmp_path / "again"), "--as", "came")
    for name in ("b", "came"):
        home.must("fork", name, f"{name}-again")
        assert inside(home, f"{name}-again", "((${#kept} == $(cat /srv/length))) && echo whole") == "whole\n"
    assert home.must("verify", "--read-data", "--json").json()["problems"] == []


COUNTER = (
    "import socket, threading, time\n"
    "n = 0\n"
    's = socket.create_server(("127.0.0.1", 7123))\n'
    "while True:\n"
    "    c, _ = s.accept()\n"
    "    n += 1\n"
    '    c.sendall(b"%d" % n)\n'
    "    c.close()\n"
)
ASK = "bash -c 'cat </dev/tcp/127.0.0.1/7123'; echo \" $word\"; cat /srv/made"


def test_what_is_in_the_store_alone_comes_back_with_its_processes() -> None:
    with open_home("evicted") as other:
        other.must("shell", "-d", "main", "--cwd", "/srv")
        inside(other, "main", f"printf %s {shlex.quote(COUNTER)} > /srv/counter; python3 /srv/counter & sleep 0")
        inside(other, "main", "word=kept; echo mine > /srv/made")
        wait_until(lambda: inside(other, "main", ASK) == "1 kept\nmine\n", "it counts")
        kept = keep(other, "warm", "main", "--tier", "live")
        assert inside(other, "main", ASK) == "2 kept\nmine\n"
        inside(other, "main", "word=later; echo other > /srv/made")
        done = other.must("evict", "warm", "--json").json()
        assert done == {"evicted": [kept["capture"]], "kept": []}
        hot = other.path / "hot" / str(kept["capture"])
        assert not hot.exists()
        check_told_of_evicted(other, str(kept["capture"]))
        (waiting,) = store_programs(other)
        assert os.getpriority(os.PRIO_PROCESS, waiting) == 10, "somebody has waited for it"
        os.kill(waiting, signal.SIGKILL)
        other.must("fork", "warm", "copy")
        assert inside(other, "copy", ASK) == "2 kept\nmine\n"
        assert hot.exists()
        other.must("evict", "--all")
        assert not hot.exists()
        (waiting,) = store_programs(other)
        assert cgroups.members(f"{cgroups.find_hierarchies().unified}/waypoint/{other.id}/store") == [waiting]
        other.must("restore", "warm", "-b", "main")
        assert inside(other, "main", ASK) == "2 kept\nmine\n"
        other.must("evict", "--all")
        assert "echo mine > /srv/made" in other.must("logs", "warm").stdout
        other.must("evict", "--all")
        inside(other, "main", "echo third > /srv/made")
        other.must("restore", "warm", "-b", "main", "--only", "files")
        assert inside(other, "main", ASK) == "3 kept\nmine\n"
        assert other.must("verify", "--read-data", "--json").json()["problems"] == []


def check_told_of_evicted(home: Home, capture: str) -> None:
    shown = home.must("show", "warm", "--json").json()
    assert (shown["durable"], shown["evicted"], shown["processes"]) == (True, True, [])
    assert "\nkept in      store alone, " in home.must("show", "warm").stdout
    (named,) = home.must("du", "warm", "--json").json()["holders"]
    assert (named["id"], named["evicted"], named["processes_bytes"], named["files_bytes"]) == (capture, True, 0, 0)
    assert named["stored_bytes"] > 1_000_000
    everything = home.must("du", "--json").json()["holders"]
    assert [one["kind"] for one in everything if one["id"] == capture and one["evicted"]] == ["capture"]
    assert "capture, evicted" in home.must("du", "warm").stdout


def store_programs(home: Home) -> list[int]:
    """Those that work on the home's store, or wait for work."""
    pids = procfs.family(daemon_pid(home))
    return [pid for pid in pids if any("store_program.py" in word for word in procfs.command_line(pid))]


def test_what_is_not_in_the_store_is_not_evicted(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-hot", "-b", branch)
    done = home.cli("evict", f"{branch}-hot")
    assert done.code == 1
    assert "it is not in the store" in done.stderr
    home.must("restore", f"{branch}-hot", "-b", branch)
    for words in (("evict",), ("evict", f"{branch}-hot", "--all")):
        done = home.cli(*words)
        assert done.code == 2
        assert "next: name the captures, or all: waypoint evict --all" in done.stderr
    home.must("evict", "--all")
