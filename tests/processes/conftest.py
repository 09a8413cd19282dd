"""What the files of this room share."""

from collections.abc import Iterator

import pytest

from tests.processes.mirror import kept_mirror
from waypoint.setup.debian_packages import find_mirror


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a mirror that keeps what one of Debian's has given."""
    with kept_mirror(find_mirror(), tmp_path_factory.mktemp("mirror")) as address:
        yield address
