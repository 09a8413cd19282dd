"""Checkpoints, forks and restores in place: what moves sessions through time."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from waypoint.capture.sealing import Kept, tip_of
from waypoint.capture.steps import Step, reach
from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.names import excludes, parse_name
from waypoint.model.records import Aspect, Capture, Reason, Ref, Tier
from waypoint.session import starting
from waypoint.session.capturing import capture, let_go_on
from waypoint.session.exec.proof import prove
from waypoint.session.ground import start_plan
from waypoint.session.home_ground import HomeGround
from waypoint.session.live import LiveSession
from waypoint.session.rewinding import noted, rewind_files
from waypoint.session.sessions import Sessions, settled
from waypoint.session.shell.putting_back import check_shell, put_back, read_state, refuse
from waypoint.session.starting import plan_birth
from waypoint.store.names import Names

MAX_FORKS = 256


class Wish(NamedTuple):
    """What a checkpoint is to be. `name` None: only the tip moves. `tier` None: the best that can be had.

    `force`: move a checkpoint of that name. `park`: the session ends with it.
    """

    name: str | None = None
    tier: Tier | None = None
    message: str = ""
    force: bool = False
    park: bool = False


class Moments:
    """One per home. Each call ends as a whole: nothing half-made is on record or left running if it raises."""

    def __init__(self, ground: HomeGround, sessions: Sessions) -> None:
        self._ground = ground
        self._sessions = sessions

    async def checkpoint(self, branch: str, wish: Wish) -> Capture:
        """Capture the session on `branch`, which goes on unless it is to be parked.

        Raises UnknownName, StateConflict (not live, name taken without `force`), CannotCapture (tier), Failed.
        """
        self._check_name(wish)
        async with self._sessions.turn(branch):
            live = await settled(self._sessions, branch) or self._sessions.get(branch)
            self._check_name(wish)
            taken = await capture(
                self._ground, live, tier=wish.tier, reason="checkpoint", message=wish.message, hold=wish.park
            )
            try:
                kept = self._record(live, taken, wish)
            except BaseException:
                self._drop(taken)
                if wish.park:
                    let_go_on(live)
                raise
            await asyncio.to_thread(reach, Step.RECORDED)
            if wish.park:
                await asyncio.shield(self._sessions.endings.begin(live, Kept(kept)))
            return kept

    async def fork(self, name: str, branches: Sequence[str]) -> list[LiveSession]:
        """Live sessions on new `branches`, all of them or none, each a copy of what `name` stands for.

        If that is a branch that is live, it is captured as it is now. Raises as `checkpoint` and `starting.start`.
        """
        _check_branches(branches)
        async with self._sessions.turn(name, *branches):
            for branch in branches:
                _check_new(self._ground.names, branch)
            origin = await self._origin(name, "forked")
            size = _size_of(origin)
            births = [
                plan_birth(branch, origin, origin.setting, size, processes=origin.tier == "live") for branch in branches
            ]
            return await self._sessions.bring_up(births, "fork")

    async def restore(self, branch: str, name: str) -> LiveSession:
        """Bring back what `name` stands for, in place: the session on `branch` is replaced by it, and captured before.

        The new one is brought up beside the old one, and must answer before the old one ends.
        """
        origin = self._ground.names.resolve(name)
        async with self._sessions.turn(branch):
            live = await settled(self._sessions, branch)
            processes = origin.tier == "live"
            birth = plan_birth(parse_name(branch), origin, origin.setting, _size_of(origin), processes=processes)
            if live is None:
                (live,) = await self._sessions.bring_up([birth], "restore")
                return live
            return await self._replace(live, origin, birth)

    async def restore_files(self, branch: str, name: str) -> LiveSession:
        """Bring back the files of what `name` stands for; the session on `branch` goes on with its processes.

        What was there is captured before, as the branch's tip, and brought back if this fails half-way.
        """
        origin = self._ground.names.resolve(name)
        async with self._sessions.turn(branch):
            live = await settled(self._sessions, branch) or self._sessions.get(branch)
            taken = await capture(self._ground, live, tier=None, reason="replaced", hold=True)
            try:
                with noted(self._ground.places.sessions / live.record.row.session, origin, taken):
                    aside = self._record_aside(live, taken, "files")
                    await asyncio.to_thread(reach, Step.RECORDED)
                    try:
                        await asyncio.to_thread(rewind_files, self._ground, live, origin)
                        await asyncio.to_thread(reach, Step.REWOUND)
                    except BaseException:
                        await asyncio.to_thread(rewind_files, self._ground, live, aside)
                        raise
            finally:
                let_go_on(live)
            return live

    async def restore_shell(self, branch: str, name: str) -> tuple[LiveSession, list[str]]:
        """Give the shell of the session on `branch` the state that it had in what `name` stands for. All else stays.

        What there is now is captured before, and is the branch's tip. Also returns, in words, what could not be brought
        back. Raises UnknownName, StateConflict (not live, not at its prompt), CannotCapture (`name` has no such state),
        Failed.
        """
        ground = self._ground
        origin = ground.names.resolve(name)
        async with self._sessions.turn(branch):
            live = await settled(self._sessions, branch) or self._sessions.get(branch)
            then = await asyncio.to_thread(read_state, ground.pool, origin)
            await check_shell(live.shell, branch, then)
            taken = await capture(ground, live, tier=None, reason="replaced")
            try:
                if taken.layers.shell is None:
                    refuse(branch, "it does not answer")
                now = await asyncio.to_thread(read_state, ground.pool, taken)
            except BaseException:
                self._drop(taken)
                raise
            self._record_aside(live, taken, "shell")
            return live, await put_back(live.shell, now, then, name)

    def _record_aside(self, live: LiveSession, taken: Capture, only: Aspect) -> Capture:
        """What there is before that aspect of it is replaced. It is what the session goes on from."""
        try:
            with self._ground.names.change("restore") as change:
                aside = msgspec.structs.replace(taken, parents=tip_of(change, live.branch))
                change.add(aside)
                change.replace_aspect(live.branch, aside.id, only)
        except BaseException:
            self._drop(taken)
            raise
        return aside

    async def _replace(self, live: LiveSession, origin: Capture, birth: starting.Birth) -> LiveSession:
        """Both at once: the old one is captured, and stays frozen; the new one comes up. Then it takes the place."""
        ground = self._ground
        starting.reserve(ground, [birth], beside=True)
        aside, new = await asyncio.gather(
            capture(ground, live, tier=None, reason="replaced", hold=True),
            self._bring_up(birth),
            return_exceptions=True,
        )
        try:
            if isinstance(aside, BaseException):
                raise aside
            if isinstance(new, BaseException):
                raise new
            await asyncio.to_thread(reach, Step.RESTORED)
            with ground.names.change("restore") as change:
                change.add(msgspec.structs.replace(aside, parents=tip_of(change, live.branch)))
                change.forget(live.record.row)
                change.ready(birth.row, origin.id)
                change.replaced = aside.id
        except BaseException as error:
            if isinstance(new, LiveSession):
                new.release()
            await starting.undo(ground, birth.row)
            if isinstance(aside, Capture):
                let_go_on(live)
                self._drop(aside)
            starting.raise_in_words(error, live.branch)
        live.successor = new
        live.terminal.epitaph = "the session was replaced: a capture was restored in its place"
        self._sessions.enlist(new, origin if birth.processes else None)
        await asyncio.to_thread(reach, Step.CONFIRMED)
        await asyncio.shield(self._sessions.endings.begin(live, Kept(aside)))
        return new

    async def _bring_up(self, birth: starting.Birth) -> LiveSession:
        """A session that answers. Nothing of it is held if this raises."""
        new = await starting.bring_up(self._ground, birth)
        try:
            await prove(new.shell, is_new=not birth.processes and start_plan.has_hooks(birth.row.setting))
        except BaseException:
            new.release()
            raise
        return new

    def _record(self, live: LiveSession, taken: Capture, wish: Wish) -> Capture:
        with self._ground.names.change("park" if wish.park else "checkpoint") as change:
            kept = msgspec.structs.replace(taken, parents=tip_of(change, live.branch))
            change.add(kept)
            change.advance(live.branch, kept.id)
            if wish.name is not None:
                ref = Ref(kind="checkpoint", capture=kept.id, created=kept.created)
                found = change.ref(wish.name)
                if found is not None and found.kind == "checkpoint" and wish.force:
                    change.put(wish.name, ref)
                else:  # on another branch, somebody may have taken the name meanwhile
                    change.create(wish.name, ref)
            if wish.park:
                change.forget(live.record.row)
        return kept

    def _drop(self, taken: Capture) -> None:
        """Remove a capture that is on no record."""
        self._ground.pool.remove(taken.id)
        self._ground.hot.remove(taken.id)

    async def _origin(self, name: str, reason: Reason) -> Capture:
        """What `name` stands for; a live branch is captured as it is now. The caller has its turn."""
        live = await settled(self._sessions, name)
        if live is None:
            return self._ground.names.resolve(name)
        taken = await capture(self._ground, live, tier=None, reason=reason)
        try:
            return self._record(live, taken, Wish())
        except BaseException:
            self._drop(taken)
            raise

    def _check_name(self, wish: Wish) -> None:
        name = wish.name
        if name is None:
            return
        found = self._ground.names.ref(parse_name(name))
        if found is not None and (found.kind == "branch" or not wish.force):
            next_step = "choose another name" + ("" if found.kind == "branch" else ", or move it with --force")
            raise StateConflict("create", f"checkpoint {name}", f"there is a {found.kind} of this name", next_step)
        if found is None:
            with self._ground.names.change("check") as change:
                change.check_free(name, "checkpoint")


def _check_new(names: Names, branch: str) -> None:
    with names.change("check") as change:
        change.check_free(branch, "branch")


def _check_branches(branches: Sequence[str]) -> None:
    for branch in branches:
        parse_name(branch)
    on = " ".join(branches[:3])
    if not 0 < len(branches) <= MAX_FORKS:
        raise UsageProblem("fork to", on, f"it takes 1 to {MAX_FORKS} branches at once", "fork several times")
    for place, branch in enumerate(branches):
        for other in branches[:place]:
            if other == branch or excludes(branch, other):
                raise UsageProblem("fork to", on, f"{other} and {branch} exclude each other", "choose other names")


def _size_of(origin: Capture) -> tuple[int, int]:
    terminal = origin.layers.terminal
    return (terminal.rows, terminal.cols) if terminal is not None else (24, 80)
