"""What all tests share: what they may need of the machine, fresh homes, the check that they leave nothing behind."""

import os
from collections.abc import Callable, Iterator

import pytest

from tests import leaks, needs
from tests.homes import RUN_VARIABLE, Completed, Home, open_home
from tests.places import CACHED_CRIU, make_temp_root

# What a run of the tests takes from the caller; anything else of these names would make the tests mean something else.
_OURS = ("WAYPOINT_CRIU", "WAYPOINT_REQUIRE_ALL", "WAYPOINT_MAY_LACK")


def pytest_configure() -> None:
    for name in [name for name in os.environ if name.startswith(("WAYPOINT_", "SUDO_")) and name not in _OURS]:
        del os.environ[name]
    os.environ[RUN_VARIABLE] = str(os.getpid())
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(make_temp_root()))
    if CACHED_CRIU.exists():
        os.environ.setdefault("WAYPOINT_CRIU", str(CACHED_CRIU))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unknown = {f"{word!r} in {item.nodeid}" for item in items for word in _words(item) if word not in needs.PROBES}
    if unknown:
        raise pytest.UsageError(f"requires() knows no {', '.join(sorted(unknown))}; it knows {', '.join(needs.PROBES)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    may_lack = os.environ.get("WAYPOINT_MAY_LACK", "").split(",")
    for word in _words(item):
        why = needs.missing(word)
        if why and os.environ.get("WAYPOINT_REQUIRE_ALL") == "1" and word not in may_lack:
            pytest.fail(f"this machine must have {word}: {why}", pytrace=False)
        if why:
            pytest.skip(f"requires {word}: {why}")


def _words(item: pytest.Item) -> list[str]:
    words = [word for marker in item.iter_markers("requires") for word in marker.args]
    return ["root", *words] if item.get_closest_marker("privileged") else words


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the privileged test that left something on the machine."""
    if not request.node.get_closest_marker("privileged"):
        yield
        return
    basetemp = tmp_path_factory.getbasetemp()
    before = leaks.take_stock()
    yield
    left = leaks.wait_new(before, basetemp)
    if left:
        leaks.umount(left)
        pytest.fail("the test left behind:\n" + "\n".join(f"  {thing}" for thing in left), pytrace=False)


@pytest.fixture
def home() -> Iterator[Home]:
    """A fresh home for one test. For one that several tests share, make a fixture of wider scope from `open_home`."""
    with open_home() as fresh:
        yield fresh


@pytest.fixture
def cli(home: Home) -> Callable[..., Completed]:
    """`waypoint` on the test's own home: `cli("exec", "--", "true").code`."""
    return home.cli
