"""Programs that CRIU refuses to dump: after the test follows the advice, a live capture and its restore work."""

import array
import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.advice import next_of
from tests.answers import unusual
from tests.homes import Home, open_home
from tests.session.causes import REFUSED, Refused
from waypoint.client import Client, Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

NUMBERS = itertools.count(1)
HELD = Path(__file__).with_name("held.py")


@pytest.fixture(scope="module")
def unfiltered() -> Iterator[Home]:
    """A home whose sessions have no seccomp filter."""
    with open_home("unfiltered", seccomp=False) as home:
        yield home


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the host with the socket `outside`, which sends an open file of the host to each client."""
    folder = tmp_path_factory.mktemp("outside")
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as held:
        listener.bind(str(folder / "outside"))
        (folder / "outside").chmod(0o666)
        listener.listen()
        own = held.enter_context((folder.parent / "own").open("w"))

        def serve() -> None:
            with contextlib.suppress(OSError):  # the listener was shut down
                while True:
                    connection = held.enter_context(listener.accept()[0])
                    sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own.fileno()]))]
                    connection.sendmsg([b"x"], sent)

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield folder
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()


@contextlib.contextmanager
def begun(home: Home, outside: Path) -> Iterator[Session]:
    session = Client(home.path).start(f"b{next(NUMBERS)}", user="root", allow=["userns"], binds=[f"{outside}:/mnt"])
    session.exec("kept=yes; echo precious > /srv/kept")
    session.run("sh", "-c", "cat > /srv/held.py", stdin=HELD.read_bytes())
    try:
        yield session
    finally:
        home.must("stop", "--all", "--discard")


CASES = [
    pytest.param(row, follow, id=f"{row.name}, {number}", marks=pytest.mark.requires(*row.needs))
    for row in REFUSED
    for number, follow in enumerate(row.follow)
]


@pytest.mark.parametrize(("row", "follow"), CASES)
def test_the_advice_makes_a_refused_program_capturable(
    request: pytest.FixtureRequest, outside: Path, row: Refused, follow: str
) -> None:
    home: Home = request.getfixturevalue("home" if row.seccomp else "unfiltered")
    client = Client(home.path)
    with begun(home, outside) as session:
        session.exec(row.start)
        before = [one.capture for one in client.history.log(all=True)]
        (predicted,) = [one for one in session.survey() if one.tier != "live"]
        refused = home.cli("checkpoint", f"refused-{session.branch}", "-b", session.branch, "--tier", "live")
        assert (refused.code, refused.stdout) == (row.code, ""), refused
        assert row.said in refused.stderr
        assert next_of(refused.stderr) == row.advice
        assert (predicted.why in refused.stderr, predicted.remedy) == (True, row.advice)
        assert [one.capture for one in client.history.log(all=True)] == before
        if row.advice.endswith("capture without memory: --tier respawn"):
            home.must("checkpoint", f"less-{session.branch}", "-b", session.branch, "--tier", "respawn")
        session.exec(follow)
        taken = session.checkpoint("taken", tier="live", force=True)
        assert (taken.tier, unusual(taken.degraded)) == ("live", [])
        session.exec("kept=changed; echo changed > /srv/kept")
        session.restore("taken")
        assert client.session(session.branch).exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"
