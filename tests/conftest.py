"""What all tests share: what they may need of the machine, fresh homes, the check that they leave nothing behind."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer

from tests import bounds, leaks, needs, workers
from tests.homes import Home, open_home
from tests.places import CACHED_CRIU, make_temp_root
from waypoint.client import Client

# What a run of the tests takes from the caller; anything else of these names would make the tests mean something else.
_OURS = ("WAYPOINT_CRIU", "WAYPOINT_REQUIRE_ALL", "WAYPOINT_MAY_LACK", "WAYPOINT_TEST_")
"""How the variables begin that tests read themselves: the last ones say how long or how large a test is."""


# A processor that others use makes an example slow, which says nothing of what is tested.
hypothesis.settings.register_profile("shared", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("shared")  # before the modules of the tests are read

_TURNS = pytest.StashKey[workers.Turns]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    workers.start_as_usual()
    bounds.bound_waits()
    for name in [name for name in os.environ if name.startswith(("WAYPOINT_", "SUDO_")) and not name.startswith(_OURS)]:
        del os.environ[name]
    workers.introduce()
    workers.mount_for_itself()
    config.option.loadscopereorder = False  # xdist's own order; ours is workers.in_order
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(make_temp_root()))
    if CACHED_CRIU.exists():
        os.environ.setdefault("WAYPOINT_CRIU", str(CACHED_CRIU))
    if hasattr(config, "workerinput"):  # one of several: their temporary folders lie in one
        shared = Path(config.option.basetemp).parent
        config.option.basetemp = str(shared / config.workerinput["workerid"].replace("g", ""))  # short, for sockets
        config.stash[_TURNS] = workers.Turns(shared)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means."""
    return workers.count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> workers.Units | None:
    """None: what else `--dist` says."""
    return workers.Units(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if _TURNS in config.stash:
        config.stash[_TURNS].close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Around fixtures of wider scope too: they are made before the first of their tests and ended after the last."""
    if _TURNS not in item.config.stash:
        return (yield)
    with item.config.stash[_TURNS].turn(item, nextitem):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: Python need not look for garbage in it, for seconds of each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unknown = {f"{word!r} in {item.nodeid}" for item in items for word in _words(item) if word not in needs.PROBES}
    if unknown:
        raise pytest.UsageError(f"requires() knows no {', '.join(sorted(unknown))}; it knows {', '.join(needs.PROBES)}")
    if _TURNS in config.stash:
        items[:] = workers.in_order(items)
        workers.tell_alone(Path(config.option.basetemp).parent, items)


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


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """One for all tests of a file. A test that kills a part of it or needs a fresh one opens its own: `open_home`."""
    with open_home() as fresh:
        yield fresh


@pytest.fixture
def client(home: Home) -> Client:
    """The SDK on the home."""
    return Client(home.path)
