"""Turns are locks on names: a task that has the turn of a name may move the name or change the session on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from waypoint.linux.tasks.stages import stage
from waypoint.model.stages import Stage

Carried = TypeVar("Carried")


class Turns:
    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._holders: dict[str, asyncio.Task[object] | None] = {}

    @contextlib.asynccontextmanager
    async def take(self, *names: str) -> AsyncIterator[None]:
        """Wait for the turns of all `names`, and hold them during the `with` block.

        Reentrant. A task that holds turns must not take the turns of further names, since two tasks could then wait for
        each other; this raises RuntimeError. Tasks that it starts do not inherit its turns.
        """
        task = asyncio.current_task()
        held = {name for name, holder in self._holders.items() if holder is task}
        if held:
            if not held.issuperset(names):
                raise RuntimeError(f"a task with the turn of {sorted(held)} takes that of {sorted(names)}")
            yield
            return
        async with contextlib.AsyncExitStack() as stack:
            for name in sorted(set(names)):  # the same order in all tasks prevents deadlocks
                lock = self._locks.setdefault(name, asyncio.Lock())
                with stage(Stage.WAIT_TURN, name) if lock.locked() else contextlib.nullcontext():
                    await stack.enter_async_context(lock)
                self._holders[name] = task
                stack.callback(self._holders.pop, name)
            yield

    async def share(self, works: Mapping[str, Coroutine[Any, Any, Carried]]) -> list[Carried]:
        """Run `works` concurrently, each in its own task. `works` maps names to coroutines; the calling task lends each
        task the turn of its name. When all have ended, return their results or raise the first error.
        """
        lender = asyncio.current_task()
        errors: list[BaseException] = []
        assert all(self._holders.get(name) is lender for name in works), "a task can only lend its own turns"

        async def borrow(name: str, work: Coroutine[Any, Any, Carried]) -> Carried:
            self._holders[name] = asyncio.current_task()
            try:
                return await work
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                self._holders[name] = lender

        done = await asyncio.gather(*(borrow(*item) for item in works.items()), return_exceptions=True)
        if errors:
            raise errors[0]
        return [result for result in done if not isinstance(result, BaseException)]
