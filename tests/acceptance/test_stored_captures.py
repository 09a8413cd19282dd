"""Captures in the store: what is durable comes back after its copy outside of the store was removed, whole."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside
from tests.answers import unusual
from tests.homes import Home, open_home
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

SERVER = """
import http.server
heap, asked = bytearray(range(256)) * (32 << 12), 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        heap[asked * 5000] = 255
        self.send_response(200); self.end_headers(); self.wfile.write(b"%d %d" % (asked, sum(heap)))
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
ASK = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000\").read().decode())'"


@pytest.fixture(scope="module")
def own_home() -> Iterator[Home]:
    with open_home() as home:
        yield home


@pytest.fixture(scope="module", autouse=True)
def empty_bytes(own_home: Home) -> int:
    """The size of the home before it had any session."""
    return int(own_home.must("du", "--json").json()["home_bytes"])


def pack_bytes(home: Home) -> int:
    return sum(pack.stat().st_size for pack in (home.path / "store/packs").iterdir())


def worker(home: Home) -> int:
    """The pid of the daemon's process for the store; 0 if there is none."""
    daemon = home.must("daemon", "status", "--json").json()["pid"]
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == daemon and b"worker_program.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except OSError:
            continue
    return 0


def test_everything_comes_back_from_the_store(own_home: Home, tmp_path: Path) -> None:
    home = own_home
    (tmp_path / "model").write_bytes(os.urandom(300_000))
    home.must("shell", "-d", "main")
    inside(home, "main", f"mkdir /srv/work; cd /srv/work; cat >server.py <<'END'\n{SERVER}END")
    inside(
        home,
        "main",
        "python3 server.py >/dev/null 2>&1 & echo first >file; ln file other; X=before; echo shm >/dev/shm/s;"
        "for i in {1..50}; do : >gone; rm gone; done; exec 7>open 8>>/etc/passwd; INODE=$(stat -c %i open)",
    )
    wait_until(lambda: inside(home, "main", f"{ASK} 2>/dev/null || :").startswith("1 "), "the server answers")
    made = home.must("checkpoint", "one", "--wait", "--attach", f"model={tmp_path}/model", "--json").json()
    assert (made["tier"], made["durable"], unusual(made["degraded"])) == ("live", True, [])
    first = pack_bytes(home)
    inside(home, "main", "echo second >file; rm /dev/shm/s; X=after")
    second = inside(home, "main", ASK)
    again = home.must("checkpoint", "two", "--wait", "--json").json()
    assert pack_bytes(home) - first < 2 << 20  # of 32 MiB of memory
    shown = home.must("show", made["image"][:10], "--json").json()
    assert (shown["capture"], shown["durable"]) == (made["capture"], True)
    with_digest = {kind for kind, layer in shown["layers"].items() if layer and layer["digest"]}
    assert with_digest == {"files", "model", "processes", "programs", "terminal"}
    assert unusual(home.must("restore", "one", "--new", "hot-one", "--json").json()["degraded"]) == []
    home.must("stop", "--files", "--all")
    evicted = home.must("evict", "--all", "--json").json()
    assert {one["capture"] for one in evicted["evicted"]} >= {made["capture"], again["capture"]}
    assert evicted["kept"] == []
    assert [
        path for path in (home.path / "hot").iterdir() if path.name not in (".base", ".memory") and path.is_dir()
    ] == []
    assert list((home.path / "hot/.memory").iterdir()) == []
    assert home.must("verify", "--read-data", "--json").json()["damage"] == []

    back = home.must("restore", "one", "--new", "new-one", "--json").json()
    assert [(one["code"], one["subject"]) for one in unusual(back["degraded"])] == [("inodes-changed", "/etc/passwd")]
    assert inside(home, "new-one", ASK).startswith("2 ")
    assert inside(home, "new-one", "cat file /dev/shm/s; echo $X; stat -c %h file") == "first\nshm\nbefore\n2\n"
    # SQLite, for one, refuses to write to a database that has another inode than when it was opened.
    assert inside(home, "new-one", '[ "$(stat -c %i open)" = "$INODE" ] && echo same || :') == "same\n"
    home.must("fork", "two", "new-two", "new-three")
    assert inside(home, "new-two", "cat file; echo $X; ls /dev/shm") == "second\nafter\n"
    assert inside(home, "new-three", ASK).split()[0] == f"{int(second.split()[0]) + 1}"
    home.must("layer", "get", "one", "model", str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == (tmp_path / "model").read_bytes()
    home.must("stop", "--files", "--all")


def test_captures_are_evicted_when_they_exceed_the_budget(own_home: Home) -> None:
    home = own_home
    home.must("shell", "-d", "main")
    captures = [home.must("checkpoint", f"hot-{n}", "--wait", "--json").json()["capture"] for n in (1, 2)]
    home.must("restore", "hot-1", "--new", "of-1")
    home.must("gc", "--hot-budget", "1T")
    assert all((home.path / "hot" / one / "images").exists() for one in captures)
    daemon = home.must("daemon", "status", "--json").json()["pid"]
    config = home.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "hot_budget_bytes": 1}))
    os.kill(daemon, signal.SIGKILL)
    home.must("checkpoint", "hot-3", "--wait")
    wait_until(lambda: not any((home.path / "hot" / one).exists() for one in captures), "the captures are evicted")
    found = home.must("du", "--json").json()
    assert (found["hot_budget_bytes"], found["copies_bytes"] < 64 << 20) == (1, True), found
    home.must("restore", "hot-1", "--new", "again-1")
    config.write_text(json.dumps({**json.loads(config.read_text()), "hot_budget_bytes": None}))
    os.kill(home.must("daemon", "status", "--json").json()["pid"], signal.SIGKILL)
    home.must("stop", "--files", "--all")
    home.must("rm", "of-1", "again-1")


def test_damage_is_reported_with_the_names_concerned(own_home: Home) -> None:
    home = own_home
    home.must("shell", "-d", "main")
    random = inside(home, "main", "head -c 100000 /dev/urandom >/srv/random; sha256sum </srv/random")
    home.must("checkpoint", "sound", "--wait")
    before = {pack.name for pack in (home.path / "store/packs").iterdir()}
    more = inside(home, "main", "head -c 100000 /dev/urandom >/srv/more; sha256sum </srv/more")
    words = bytes.fromhex(inside(home, "main", "head -c 64 /srv/more | od -An -v -tx1"))
    home.must("checkpoint", "damaged", "--wait")
    home.must("stop", "--files", "main")
    newest = max((home.path / "store/packs").iterdir(), key=lambda pack: pack.stat().st_mtime_ns)
    newest.unlink()
    home.must("evict", "damaged")  # the store does not have all of it, so it is stored again first
    home.must("restore", "damaged", "--new", "again")
    assert inside(home, "again", "sha256sum </srv/more") == more
    home.must("stop", "again", "--discard")
    wait_until(lambda: home.must("show", "main", "--json").json()["durable"], "both are in the store")
    for pack in (home.path / "store/packs").iterdir():
        if pack.name not in before:
            pack.write_bytes(pack.read_bytes()[:-1])
    found = home.cli("verify", "--read-data", "--json")
    assert (found.code, {"damaged", "main"} <= {*found.json()["stored_again"]}) == (10, True), found
    home.must("evict", "--all")  # which waits until they are stored again
    home.must("gc")  # which removes the old packs
    assert home.must("verify", "--read-data").stdout.startswith("no damage")
    assert home.must("show", "damaged", "--json").json()["durable"]
    (pack,) = (one for one in (home.path / "store/packs").iterdir() if words in one.read_bytes())
    content = bytearray(pack.read_bytes())
    content[content.index(words)] ^= 1
    pack.write_bytes(content)
    assert home.must("verify").stdout.startswith("no damage")
    done = home.cli("verify", "--read-data", "--json")
    assert (done.code, {name for one in done.json()["damage"] for name in one["names"]}) == (10, {"damaged", "main"})
    assert home.cli("verify").code == 10
    refused = home.cli("restore", "damaged", "--new", "no")
    assert (refused.code, "store" in refused.stderr) == (10, True), refused
    home.must("restore", "sound", "--new", "yes")
    assert inside(home, "yes", "sha256sum </srv/random") == random
    home.must("stop", "--files", "--all")
    home.must("rm", "damaged", "main")
    home.must("gc", "--keep-operations", "0s")
    assert home.must("verify", "--read-data").stdout.startswith("no damage")


def test_a_gc_removes_the_images_of_removed_captures(own_home: Home) -> None:
    home = own_home
    home.must("shell", "-d", "large")
    inside(home, "large", "head -c 20000000 /dev/urandom >/srv/large")
    home.must("checkpoint", "large-cp", "-b", "large", "--wait")
    home.must("stop", "--files", "large")
    before = pack_bytes(home)
    home.must("rm", "large-cp", "large")
    home.must("gc", "--keep-operations", "0s")
    assert before - pack_bytes(home) > 19 << 20


def test_captures_are_stored_in_the_background_and_again_after_a_kill(own_home: Home) -> None:
    home = own_home
    home.must("shell", "-d", "kill")
    inside(home, "kill", "head -c 3000000 /dev/urandom >/srv/kill")
    capture = home.must("checkpoint", "kill-cp", "-b", "kill", "--json").json()["capture"]
    assert not home.must("show", capture, "--json").json()["durable"]
    os.kill(home.must("daemon", "status", "--json").json()["pid"], signal.SIGKILL)

    def is_durable() -> bool:
        return bool(home.must("show", capture, "--json").json()["durable"])

    home.must("checkpoint", "kill-cp2", "-b", "kill", "--wait")  # the other one is stored in the same job
    wait_until(is_durable, "the next daemon stores the capture")
    os.kill(worker(home), signal.SIGKILL)
    home.must("checkpoint", "kill-cp3", "-b", "kill", "--wait")
    home.must("stop", "--files", "kill")
    assert home.must("verify", "--read-data").stdout.startswith("no damage")


def test_what_is_in_use_is_not_evicted_and_what_cannot_be_told_is_refused(own_home: Home) -> None:
    home = own_home
    assert home.cli("evict").code == 2
    assert home.cli("evict", "x", "--all").code == 2
    assert home.cli("evict", "unknown-name").code == 2
    home.must("shell", "-d", "live")
    home.must("checkpoint", "live-cp", "-b", "live")
    evicted = home.must("evict", "live-cp", "--json").json()  # which stores it first
    assert [one["name"] for one in evicted["evicted"]] == ["live-cp"]
    assert home.must("evict", "live-cp", "--json").json()["evicted"] == []
    inside(home, "live", "echo on >/srv/on")
    home.must("restore", "live-cp", "-b", "live")
    assert inside(home, "live", "ls /srv/on 2>/dev/null || echo gone") == "gone\n"
    home.must("stop", "--files", "live")


def test_a_home_without_names_is_small_again(own_home: Home, empty_bytes: int) -> None:
    """The last test of this file: the home has had all sessions above."""
    home = own_home
    home.must("stop", "--files", "--all")
    names = {name for one in home.must("log", "--all", "--json").json() for name in one["names"]}
    home.must("rm", *names)
    assert home.must("du", "--json").json()["stored_bytes"] > 1 << 20
    freed = home.must("gc", "--keep-operations", "0s", "--json").json()
    assert freed["home_bytes"] - empty_bytes < 32 << 20, freed
    found = home.must("du", "--json").json()
    assert (found["stored_bytes"] < 1 << 20, found["hot_bytes"] < 1 << 20) == (True, True), found
