"""Fixtures: users of this machine, live sessions, and terminals to type at and to look at."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.acceptance.people import Person, new_person
from tests.acceptance.screen import Screen, open_screen
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import session
from tests.corner import corner as corner
from tests.homes import Home


@pytest.fixture(scope="session")
def person() -> Iterator[Person]:
    """An ordinary user whose login shell is bash, with the files that the distribution gives to new users."""
    with new_person("b", "/bin/bash") as made:
        yield made


@pytest.fixture(scope="session")
def zsh_person() -> Iterator[Person]:
    """An ordinary user whose login shell is zsh."""
    with new_person("z", "/bin/zsh") as made:
        (made.home / ".zshrc").write_text("PS1='%n %~ %# '\n")
        yield made


@pytest.fixture
def branch(home: Home, person: Person) -> Iterator[str]:
    """The branch of a live session of the ordinary user, for this test alone."""
    with session(home, person.name) as name:
        yield name


@pytest.fixture
def seat(home: Home) -> Iterator[Callable[..., Seat]]:
    """Return a function that opens a terminal whose shell (outside of all sessions) has the command `waypoint`."""
    with ExitStack() as stack:

        def take(rows: int = 30, cols: int = 100) -> Seat:
            return stack.enter_context(closing(Seat(home, rows, cols)))

        yield take


@pytest.fixture
def screen(home: Home) -> Iterator[Callable[..., Screen]]:
    """Return a function that opens such a terminal in a tmux server of its own, so that its screen can be read."""
    with ExitStack() as stack:

        def open_one(rows: int = 30, cols: int = 100) -> Screen:
            return stack.enter_context(open_screen(home, rows, cols))

        yield open_one
