"""Programs that restrict themselves are never restored without their restrictions."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answers import unusual
from tests.homes import Home
from waypoint.client import Client, Session
from waypoint.model.errors import CannotCapture

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

PROGRAM = Path(__file__).with_name("restricting.py")


BRANCHES = itertools.count()


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    session = Client(home.path).start(f"restricting-{next(BRANCHES)}")
    session.run("sh", "-c", "cat > /srv/restricting.py", stdin=PROGRAM.read_bytes())
    yield session
    home.must("stop", "--all", "--discard")


def start(session: Session, restriction: str) -> None:
    session.exec(f"python3 /srv/restricting.py {restriction} > /srv/said 2>&1 & until [ -e /srv/on ]; do :; done")


def said(session: Session) -> bytes:
    session.exec(": > /srv/go; wait")
    return session.run("cat", "/srv/said").stdout


def test_a_program_with_no_new_privs_is_captured_live_and_not_changed(session: Session) -> None:
    start(session, "no_new_privs")
    taken = session.checkpoint("unrestricted", tier="live")
    assert (taken.tier, unusual(taken.degraded)) == ("live", [])
    assert said(session) == b"allowed\n"


@pytest.mark.parametrize(
    ("restriction", "code"),
    [
        ("landlock", "landlock"),
        pytest.param("mseal", "criu-sealed-memory", marks=pytest.mark.requires("own-criu")),
        pytest.param("mdwe", "criu-mdwe", marks=pytest.mark.requires("own-criu")),
    ],
)
def test_a_restricted_program_is_not_captured_live_and_stays_restricted(
    session: Session, restriction: str, code: str
) -> None:
    start(session, restriction)
    with pytest.raises(CannotCapture) as caught:
        session.checkpoint("refused", tier="live")
    assert caught.value.code == code
    taken = session.checkpoint(f"restricted-{restriction}")
    assert taken.tier == "respawn"
    assert [(one["code"], one["subject"]) for one in taken.degraded] == [("no-processes", code)]
    assert said(session) == b"refused\n"
