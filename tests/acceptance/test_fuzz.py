"""A real daemon with hostile clients and sessions: it logs no bug, leaks nothing and serves other sessions."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given

from tests import fuzzing
from tests.acceptance.sessions import inside
from tests.daemon.raw_client import RawClient
from tests.fuzzing import Entry, FuzzRequest
from tests.homes import Home, open_home
from tests.waiting import DEADLINE_S, holds_within
from waypoint.daemon.http.routes import ROUTES
from waypoint.linux.storage import idmapped
from waypoint.linux.tasks import procfs
from waypoint.model.paths import socket_path

pytestmark = [pytest.mark.soak(part="floods"), pytest.mark.privileged]

HEAVY = ("/v1/doctor", "/v1/gc", "/v1/jobs", "/v1/daemon/stop", "/v1/sessions", "/v1/operations/undo")
"""Routes that are not fuzzed: a valid request to them takes long or ends the test."""

FUZZED = tuple(route for route in ROUTES if route.method == "GET" or route.path not in HEAVY)
GROWN_BYTES = 48 << 20


@pytest.fixture(scope="module")
def crowd() -> Iterator[Home]:
    """A home with two sessions. The tests send malformed input to or from `evil`; `good` must keep working."""
    with open_home("fuzz") as home:
        for branch in ("evil", "good"):
            home.must("shell", branch, "-d", "--user", "root")
        yield home


def daemon_of(home: Home) -> int:
    return int(home.must("daemon", "status", "--json").json()["pid"])


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def open_files(pid: int) -> Counter[str]:
    """Count the open files of the process by kind, without names.db, which each thread keeps open."""
    names = procfs.open_files(pid).values()
    return Counter(re.sub("[0-9]+", "N", name) for name in names if "names.db" not in name)


@contextlib.contextmanager
def unharmed(home: Home) -> Iterator[None]:
    """Check that the block neither ends the daemon, nor makes it log a bug, nor leaves it more memory or open files."""
    pid, log = daemon_of(home), home.path / "daemon.log"
    inside(home, "good", "true")
    before, files, read = resident_bytes(pid), open_files(pid), log.stat().st_size
    yield
    said = log.read_text()[read:]
    assert not re.search("Traceback|bug while|Exception in|never retrieved", said), said[-3000:]
    assert daemon_of(home) == pid
    # An exec leaves the FIFO `go` of its session open.
    few = files.total() + len(("good", "evil"))
    assert holds_within(DEADLINE_S, lambda: open_files(pid).total() <= few), open_files(pid) - files
    assert resident_bytes(pid) < before + GROWN_BYTES


def check_good_session(home: Home) -> None:
    assert inside(home, "good", "echo $((40 + 2))") == "42\n"


def test_no_request_harms_the_daemon(crowd: Home) -> None:
    path = socket_path(str(crowd.path))

    @fuzzing.bounded(300)
    @given(asked=fuzzing.requests(FUZZED, ["evil", "nosuch"]))
    def asks(asked: FuzzRequest) -> None:
        # The client closes at once, so streams end too. Names that a request makes are kept until the home is removed.
        with RawClient(path) as client:
            client.send(asked.data)
            client.sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(EOFError, ConnectionError):
                status = client.head().status
                assert status != 500, asked.shown

    with unharmed(crowd):
        asks()
        check_good_session(crowd)


class Folder:
    """The folder /run/waypoint of the session `evil`, written to with the rights of the session's root."""

    def __init__(self, home: Home) -> None:
        found = home.must("ps", "--json").json()
        pid = next(one["pid"] for one in found if one["branch"] == "evil")
        root = Path(f"/proc/{pid}/root")
        self.path = root / "run/waypoint"
        self._owner = root.stat().st_uid, root.stat().st_gid
        assert procfs.is_same(pid, procfs.start_ticks(pid))

    def put(self, what: Entry) -> None:
        place = self.path / what.name
        with idmapped.acting_as(*self._owner), contextlib.suppress(OSError):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
            self._make(place, what)

    def _make(self, place: Path, what: Entry) -> None:
        match what.kind:
            case "file" | "no-rights":
                place.write_bytes(what.content)
                place.chmod(0 if what.kind == "no-rights" else 0o600)
            case "huge":
                with place.open("wb") as file:
                    file.truncate(1 << 40)
            case "link":
                place.symlink_to(what.target)
            case "loop":
                place.symlink_to(place.name)
            case "fifo":
                os.mkfifo(place)
            case "folder" | "full":
                (place / "below" if what.kind == "full" else place).mkdir(parents=True)
            case "socket":
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.bind(str(place))
            case "hard":
                os.link(self.path / "nonce", place)

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self.path / "bell", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with contextlib.suppress(OSError):
                os.write(fd, b"!")
            os.close(fd)


def test_no_content_of_a_run_folder_harms_the_daemon(crowd: Home) -> None:
    @fuzzing.bounded(10)
    @given(puts=fuzzing.FOLDERS)
    def lives(puts: list[Entry]) -> None:
        folder = Folder(crowd)
        for what in puts:
            folder.put(what)
        folder.ring()
        # Without the files of the shell hooks the shell waits for ever, so this command may time out.
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = crowd.cli("exec", "-b", "evil", "--timeout", "0.5", "--wait-prompt", "0.2", "true", timeout_s=2)
            assert "bug of Waypoint" not in done.stderr, done
        check_good_session(crowd)

    crowd.must("shell", "evil", "-d", "--user", "root")
    with unharmed(crowd):
        lives()
        done = crowd.cli("checkpoint", "of-evil", "-b", "evil", "--force")
        assert "bug of Waypoint" not in done.stderr, done


def test_a_starting_daemon_survives_any_content_of_a_run_folder(crowd: Home) -> None:
    log = crowd.path / "daemon.log"
    read = log.stat().st_size

    @fuzzing.bounded(4)
    @given(puts=fuzzing.FOLDERS)
    def lives(puts: list[Entry]) -> None:
        crowd.cli("stop", "evil", "--discard")
        crowd.must("shell", "evil", "-d", "--user", "root")
        folder = Folder(crowd)
        for what in puts:
            folder.put(what)
        os.kill(daemon_of(crowd), signal.SIGKILL)
        check_good_session(crowd)
        crowd.must("stop", "--files", "evil")
        crowd.must("shell", "evil", "-d", "--user", "root")

    lives()
    said = log.read_text()[read:]
    assert not re.search("Traceback|bug while|Exception in|never retrieved", said), said[-3000:]
