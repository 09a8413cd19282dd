"""Sessions for tests: started for a purpose, thrown away afterwards."""

import contextlib
import itertools
from collections.abc import Iterator

from tests.homes import Home

_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def session(home: Home, user: str, *options: str) -> Iterator[str]:
    """A live session of `user` on a branch of its own; its name. Fine if the test has ended it."""
    name = f"s{next(_NUMBERS)}"
    home.must("shell", name, "-d", "--user", user, *options)
    try:
        yield name
    finally:
        home.cli("stop", name, "--discard")
