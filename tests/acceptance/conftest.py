"""People, homes and sessions that the tests of a file share, and the terminals to see them on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.acceptance.alone import Caller, home_of_their_own
from tests.acceptance.people import Person, new_person
from tests.acceptance.screen import Screen, open_screen
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import session
from tests.corner import corner as corner
from tests.homes import Home


@pytest.fixture(scope="session")
def person() -> Iterator[Person]:
    """Whose login shell is bash, with the files that the distribution gives to new users."""
    with new_person("b", "/bin/bash") as made:
        yield made


@pytest.fixture(scope="session")
def zsh_person() -> Iterator[Person]:
    """Whose login shell is zsh."""
    with new_person("z", "/bin/zsh") as made:
        (made.home / ".zshrc").write_text("PS1='%n %~ %# '\n")
        yield made


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Person]:
    """A user for whom nothing was set up, another for each file of tests."""
    with new_person("new", "/bin/bash") as made:
        yield made


@pytest.fixture(scope="module")
def user(newcomer: Person) -> Iterator[Caller]:
    """The newcomer, with a home of their own."""
    with home_of_their_own(newcomer) as caller:
        yield caller


@pytest.fixture
def branch(home: Home, person: Person) -> Iterator[str]:
    """A live session of the ordinary user's, for this test alone."""
    with session(home, person.name) as name:
        yield name


@pytest.fixture
def seat(home: Home) -> Iterator[Callable[..., Seat]]:
    """`seat()`: a terminal with an outer shell, in which `waypoint` is a command. Several may be taken."""
    with ExitStack() as stack:

        def take(rows: int = 30, cols: int = 100) -> Seat:
            return stack.enter_context(closing(Seat(home, rows, cols)))

        yield take


@pytest.fixture
def screen(home: Home) -> Iterator[Callable[..., Screen]]:
    """`screen()`: the same in a tmux of its own, which knows what is to be seen."""
    with ExitStack() as stack:

        def open_one(rows: int = 30, cols: int = 100) -> Screen:
            return stack.enter_context(open_screen(home, rows, cols))

        yield open_one
