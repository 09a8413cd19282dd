"""What a session's own processes may ask for: captures, restores and forks of their own branch, and of its history."""

from datetime import UTC, datetime

from waypoint.branch.graph import walk_back
from waypoint.model.errors import CannotCapture, UnknownName, UsageProblem, WaypointError
from waypoint.model.records import Capture
from waypoint.session.inside.commands import Command, parse
from waypoint.session.inside.spool import Answer
from waypoint.session.live import LiveSession
from waypoint.session.moments import Moments, Wish
from waypoint.store.names import Names

LOG_LIMIT = 20


class InsideService:
    """Serves every session of a home, each for its own branch alone."""

    def __init__(self, names: Names, moments: Moments) -> None:
        self._names = names
        self._moments = moments

    async def serve(self, live: LiveSession, words: list[str]) -> Answer:
        """Never raises for what the session did wrong."""
        try:
            return Answer(0, await self._carry_out(live.branch, parse(words)))
        except WaypointError as error:
            return Answer(error.exit_code, f"waypoint: {error}\n")

    async def _carry_out(self, branch: str, command: Command) -> str:
        match command.verb:
            case "checkpoint":
                return await self._checkpoint(branch, command)
            case "restore":
                return await self._restore(branch, command)
            case "fork":
                return await self._fork(branch, command)
            case "log":
                return self._log(branch, command)
            case _:
                return self._status(branch)

    async def _checkpoint(self, branch: str, command: Command) -> str:
        if command.tier == "respawn":
            said = "this version knows the tiers live and files"
            raise CannotCapture("checkpoint", f"branch {branch}", said, "leave out --tier")
        tier = None if command.tier == "auto" else command.tier
        name = _one_name(command)
        kept = await self._moments.checkpoint(branch, Wish(name, tier, command.message, command.force))
        return f"checkpointed {name}  {kept.id}  {kept.tier}  paused {kept.paused_ms or 0:.0f} ms\n"

    async def _restore(self, branch: str, command: Command) -> str:
        capture = self._own(branch, _one_name(command))
        if command.branch is not None:
            await self._moments.fork(capture.id, [command.branch])
            return f"{command.branch}\n"
        await self._moments.restore(branch, capture.id)
        return ""  # nobody is left to read it: the session that asked has ended

    async def _fork(self, branch: str, command: Command) -> str:
        if not command.names:
            raise UsageProblem("fork", "nothing", "no NAME was given", "waypoint fork NAME BRANCH...")
        name, *branches = command.names
        origin = name if name == branch else self._own(branch, name).id
        if command.count is not None:
            if branches:
                raise UsageProblem("fork", name, "branches and a count exclude each other", "give one of them")
            branches = [f"{command.prefix or name}-{number}" for number in range(1, command.count + 1)]
        return "".join(f"{live.branch}\n" for live in await self._moments.fork(origin, branches))

    def _log(self, branch: str, command: Command) -> str:
        start = self._own(branch, _one_name(command)) if command.names else self._tip(branch)
        lines = []
        for capture in walk_back(self._names, [start] if start else [], command.count or LOG_LIMIT):
            when = datetime.fromtimestamp(capture.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
            names = ", ".join(self._names.names_of(capture.id))
            lines.append(f"{capture.id[:12]}  {when}  {capture.tier}  {names}  {capture.message or capture.reason}\n")
        return "".join(lines)

    def _status(self, branch: str) -> str:
        tip = self._tip(branch)
        return f"branch {branch}\ntip {tip.id if tip else 'none'}\n"

    def _tip(self, branch: str) -> Capture | None:
        ref = self._names.ref(branch)
        return self._names.capture(ref.capture) if ref and ref.capture else None

    def _own(self, branch: str, name: str) -> Capture:
        """What `name` stands for, if it is in the branch's own history: what others did is nobody's business here."""
        found = self._names.resolve(name)
        tip = self._tip(branch)
        if found.id not in {capture.id for capture in walk_back(self._names, [tip] if tip else [])}:
            said = f"it is not in the history of {branch}"
            raise UnknownName("use", repr(name), said, "'waypoint log' lists what is")
        return found


def _one_name(command: Command) -> str:
    if len(command.names) != 1:
        said = f"one NAME is needed, {len(command.names)} were given"
        raise UsageProblem(command.verb, "the session", said, f"waypoint {command.verb} NAME")
    return command.names[0]
