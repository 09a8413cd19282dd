"""Check many rows in one test: every row runs, and the failures of all rows are reported together."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Row = Callable[[object], AbstractContextManager[None]]


@contextlib.contextmanager
def collecting() -> Iterator[Row]:
    """Use as `with collecting() as row: for ...: with row(name): assert ...`. Only AssertionError is collected."""
    failures: list[str] = []

    @contextlib.contextmanager
    def row(name: object) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            failures.append(f"{name}: {error}")

    yield row
    assert not failures, f"{len(failures)} rows failed\n" + "\n".join(failures)
