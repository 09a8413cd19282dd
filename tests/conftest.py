"""Fixtures and hooks of all tests: markers for needs, fresh homes, and the check that a test leaves nothing behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import bounds, leaks, needs, soak, workers
from tests.homes import Home, open_home
from tests.places import STOCK_CRIU, make_temp_root
from waypoint.client import Client
from waypoint.setup import criu_build

_KEPT_VARIABLES = ("WAYPOINT_CRIU", "WAYPOINT_REQUIRE_ALL", "WAYPOINT_MAY_LACK", "WAYPOINT_TEST_")
"""Prefixes of the variables that tests read. All other WAYPOINT_ and SUDO_ variables are removed from the environment,
because they would change the behaviour under test.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    workers.start_as_usual()
    bounds.bound_waits()
    settings.register_profile("gate", deadline=None, derandomize=True, database=None)
    settings.register_profile("soak", deadline=None, max_examples=1000, database=None)
    settings.load_profile("gate")  # pytest reads the option --hypothesis-profile later
    for name in [
        name for name in os.environ if name.startswith(("WAYPOINT_", "SUDO_")) and not name.startswith(_KEPT_VARIABLES)
    ]:
        del os.environ[name]
    workers.introduce()
    workers.mount_for_itself()
    config.option.loadscopereorder = False  # workers.in_order replaces xdist's order
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(make_temp_root()))
    criu = criu_build.built() or (STOCK_CRIU if STOCK_CRIU.exists() else None)
    if criu:
        os.environ.setdefault("WAYPOINT_CRIU", str(criu))
    if hasattr(config, "workerinput"):  # an xdist worker: all workers share one temporary folder
        shared = Path(config.option.basetemp).parent
        config.option.basetemp = str(
            shared / config.workerinput["workerid"].replace("g", "")
        )  # short: a socket's path has at most 107 bytes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The number of workers for `-n auto`."""
    return workers.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unknown = {f"{word!r} in {item.nodeid}" for item in items for word in _words(item) if word not in needs.PROBES}
    if unknown:
        raise pytest.UsageError(
            f"unknown in requires(): {', '.join(sorted(unknown))}; known: {', '.join(needs.PROBES)}"
        )
    odd = {f"{item.nodeid}: {marker}" for item in items for marker in item.iter_markers("soak") if not _is_part(marker)}
    if odd:
        raise pytest.UsageError(f"not soak(part=...) with a part of tests/soak.py: {', '.join(sorted(odd))}")
    if hasattr(config, "workerinput"):
        items[:] = workers.in_order(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    may_lack = os.environ.get("WAYPOINT_MAY_LACK", "").split(",")
    for word in _words(item):
        why = needs.missing(word)
        if why and os.environ.get("WAYPOINT_REQUIRE_ALL") == "1" and word not in may_lack:
            pytest.fail(f"this machine must have {word}: {why}", pytrace=False)
        if why:
            pytest.skip(f"requires {word}: {why}")


def _is_part(marker: pytest.Mark) -> bool:
    return not marker.args and list(marker.kwargs) == ["part"] and marker.kwargs["part"] in soak.PARTS


def _words(item: pytest.Item) -> list[str]:
    words = [word for marker in item.iter_markers("requires") for word in marker.args]
    return ["root", *words] if item.get_closest_marker("privileged") else words


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a privileged test that left something on the machine."""
    if not request.node.get_closest_marker("privileged"):
        yield
        return
    basetemp = tmp_path_factory.getbasetemp()
    before = leaks.take_snapshot()
    yield
    left = leaks.wait_new(before, basetemp)
    if left:
        leaks.umount(left)
        pytest.fail("the test left behind:\n" + "\n".join(f"  {thing}" for thing in left), pytrace=False)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A home that all tests of a file share. A test that kills the daemon, or needs a fresh home, calls `open_home`."""
    with open_home() as fresh:
        yield fresh


@pytest.fixture
def client(home: Home) -> Client:
    return Client(home.path)
