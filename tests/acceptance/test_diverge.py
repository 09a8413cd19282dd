"""Forks of one checkpoint change independently; none changes the checkpoint or another branch."""

from collections.abc import Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import in_process, in_shell, new_name, restore_as, started
from tests.homes import Home
from waypoint.client import Client
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

SERVER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 4712))
word = "parent"
while True:
    with listener.accept()[0] as one:
        said = one.recv(100).decode()
        word = said or word
        one.sendall(word.encode())
"""
ASK = """python3 -c 'import socket, sys; s = socket.create_connection(("127.0.0.1", 4712), 5)
s.sendall(sys.argv[1].encode()); s.shutdown(socket.SHUT_WR); print(s.recv(100).decode())' """


@pytest.fixture(scope="module")
def origin(home: Home, person: Person) -> Iterator[tuple[Session, str]]:
    """A session with a shell variable, files and a server, and the name of its checkpoint."""
    with started(home, person.name) as session:
        session.run("sh", "-c", "cat >/tmp/server.py", stdin=SERVER.encode())
        session.exec("mine=parent; echo parent >/tmp/path; mkdir /tmp/folder; echo parent >/tmp/folder/same")
        session.exec("echo parent >/dev/shm/memory; python3 /tmp/server.py </dev/null >/tmp/server.log 2>&1 &")
        in_process(session, f"until [ \"$({ASK} '' 2>/dev/null)\" = parent ]; do sleep 0.02; done")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        yield session, checkpoint


def change(session: Session, word: str) -> None:
    session.exec(f"mine={word}; cd /tmp/folder; echo {word} >/tmp/path; echo {word} >/dev/shm/memory")
    session.exec(f"rm -r same; mkdir same; echo {word} >same/{word}")
    assert in_process(session, f"{ASK} {word}") == f"{word}\n"


def state(session: Session) -> list[str]:
    found = in_shell(session, f"echo $mine; pwd; cat /tmp/path /dev/shm/memory; find /tmp/folder; cd .; {ASK} ''")
    return found.splitlines()


PARENT = ["parent", "/tmp", "parent", "parent", "/tmp/folder", "/tmp/folder/same", "parent"]


def changed(word: str) -> list[str]:
    return [word, "/tmp/folder", word, word, "/tmp/folder", "/tmp/folder/same", f"/tmp/folder/same/{word}", word]


def test_forks_have_independent_files_variables_and_ports(home: Home, origin: tuple[Session, str]) -> None:
    session, checkpoint = origin
    forks = Client(home.path).fork(checkpoint, count=3, prefix=f"{session.branch}-each")
    words = ["one", "two", "three"]
    for fork, word in zip(forks, words, strict=True):
        change(fork, word)
    for fork, word in zip(forks, words, strict=True):
        assert state(fork) == changed(word)
    assert state(session) == PARENT
    again = restore_as(home, session, checkpoint, "fork")
    assert state(again) == PARENT


def test_forks_of_forks_are_independent(home: Home, origin: tuple[Session, str]) -> None:
    session, checkpoint = origin
    child = restore_as(home, session, checkpoint, "fork")
    change(child, "child")
    [grandchild] = Client(home.path).fork(child.branch, f"{session.branch}-grandchild")
    change(grandchild, "grandchild")
    [last] = Client(home.path).fork(grandchild.branch, f"{session.branch}-last")
    assert state(last) == changed("grandchild")
    assert state(child) == changed("child")
    change(last, "last")
    assert [state(one)[0] for one in (child, grandchild, last)] == ["child", "grandchild", "last"]


def test_a_restore_in_place_of_one_fork_does_not_change_the_others(home: Home, origin: tuple[Session, str]) -> None:
    session, checkpoint = origin
    forks = Client(home.path).fork(checkpoint, count=2, prefix=f"{session.branch}-place")
    for fork, word in zip(forks, ("left", "right"), strict=True):
        change(fork, word)
    forks[0].restore(checkpoint)
    assert state(forks[0]) == PARENT
    assert state(forks[1]) == changed("right")
