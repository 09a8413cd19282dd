"""Fixtures of these tests. A test may be a coroutine, which runs in its own event loop."""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.people import Person, new_person
from tests.corner import corner as corner
from tests.homes import Home, open_home
from tests.projects import project as project
from tests.session.pauses import Pauses
from tests.session.stage import Stage
from tests.session.transactions import pausable_home as pausable_home
from tests.session.transactions import w as w

# Far longer than any coroutine test takes, so that a test that would hang fails with its name.
_LIMIT_S = 120


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def bounded() -> None:
        async with asyncio.timeout(_LIMIT_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True


@pytest.fixture(scope="module")
def pauses(tmp_path_factory: pytest.TempPathFactory) -> Pauses:
    """Opens homes whose daemon can be stopped at a step of an operation."""
    return Pauses(tmp_path_factory.mktemp("pauses"))


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    """An ordinary user, who may use the homes `let_in` and `trusting`."""
    with new_person("let-in", "/bin/bash") as made:
        yield made


@pytest.fixture(scope="module")
def let_in(person: Person) -> Iterator[Home]:
    """A home that `person` may use as themselves."""
    with open_home("let-in") as made:
        done = made.must("setup", "--user", person.name)
        assert f"user {person.name} (with own rights only) may use the home" in done.stderr
        yield made


@pytest.fixture(scope="module")
def trusting(person: Person) -> Iterator[Home]:
    """A home that trusts `person` like root. It shows that a refusal in `let_in` is due to the missing trust."""
    with open_home("trusting") as made:
        done = made.must("setup", "--user", person.name, "--trust", "full")
        assert f"user {person.name} (with full trust, so with the rights of root) may use the home" in done.stderr
        yield made


@pytest.fixture(params=["bash", pytest.param("zsh", marks=pytest.mark.soak(part="matrix"))])
def shell(request: pytest.FixtureRequest) -> str:
    """The shell that the test is about: bash in the gate, zsh in the soak suite."""
    kind: str = request.param
    return kind


@pytest.fixture
def stage(tmp_path: Path, shell: str) -> Iterator[Stage]:
    """A stage whose shell is that of the fixture `shell`. Call `open` to start it."""
    with ExitStack() as stack:
        yield Stage(tmp_path, shell, stack)


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Stage]:
    """A stage with bash."""
    with ExitStack() as stack:
        yield Stage(tmp_path, "bash", stack)


@pytest.fixture
def zsh(tmp_path: Path) -> Iterator[Stage]:
    """A stage with zsh."""
    with ExitStack() as stack:
        yield Stage(tmp_path, "zsh", stack)
