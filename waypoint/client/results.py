"""The records that are the SDK's alone."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from waypoint.model.details.diff_facts import EnvironmentFacts, FileFacts, ProgramsFacts, SideFacts

EXIT_TIMEOUT, EXIT_FAILED = 124, 125
OnOutput = Callable[[bytes], object]

WantedTier = Literal["auto", "live", "respawn", "files"]
"""How faithfully a checkpoint is to keep the processes; `auto` is the best that can be had."""

LowerTier = Literal["live", "respawn", "files"]
"""No more than what a capture of this tier keeps is brought back."""


class CheckpointOptions(TypedDict, total=False):
    """What may be asked of a checkpoint beyond its name and tier.

    `message`: a note. `force`: move a checkpoint of that name, which is a StateConflict otherwise. `park`: end the
    session with the checkpoint; its processes are kept (CannotCapture if one cannot be) unless the tier is `respawn` or
    `files`; with `lose_processes` those that can be. `wait`: return when the capture survives a power loss; if that
    fails, the checkpoint is made all the same.
    """

    message: str
    force: bool
    park: bool
    lose_processes: bool
    wait: bool


class StartOptions(TypedDict, total=False):
    """What may be asked of a new session (docs/protocol.md, `POST /v1/sessions`). What is left out, the daemon decides.

    `from_name`: the branch or capture whose files it goes on from. `binds`: `HOST:PATH[:ro]`. `user`: a name or number.
    `cwd`: a folder that the session must have. `shell`: the path or name of a shell. `env`: of it only the terminal's
    type, language and time zone are taken. `command`: what runs in place of the user's shell. `allow`: what the session
    may do beyond the usual. `net`: `from` is that of `from_name`. `allow_net`: the only names and networks that it may
    reach. `publish`: ports of the machine that lead into it, `[IP:]HOST:INNER[/udp]`. `tier`: of a capture no more than
    that is brought back. `memory`, `disk`: limits in bytes; `cpus`: in processors; `pids`: in processes and threads.
    """

    from_name: str
    base: str
    binds: list[str]
    net: Literal["private", "host", "none", "from"]
    user: str
    cwd: str
    shell: str
    env: dict[str, str]
    rows: int
    cols: int
    command: list[str]
    allow: list[Literal["userns"]]
    allow_net: list[str]
    publish: list[str]
    tier: LowerTier
    memory: int
    cpus: float
    pids: int
    disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a command has ended. `by`: whose code `exit` is, `command` or `waypoint`. `said`: why, in words, if there is
    more to say than the code. `ended`: the session ended with it.
    """

    exit: int
    by: str
    said: str = ""
    ended: bool = False

    @property
    def timed_out(self) -> bool:
        """Waypoint has ended the command at its timeout."""
        return self.by == "waypoint" and self.exit == EXIT_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult(Ending):
    """What a command line printed, and how it ended. `signal`: the last signal that it got at its timeout, such as
    `INT` or `KILL`; "": none. `new_shell`: it has ended the session's shell (`cd x || exit 1`), and a new one with the
    state of that one has taken its place. `state_lost`: without that state, which could not be written or is too large.
    """

    output: bytes
    signal: str = ""
    new_shell: bool = False
    state_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Ending):
    """What a process in the session printed, and how it ended."""

    stdout: bytes
    stderr: bytes


@dataclass(slots=True, kw_only=True)
class DiffResult:
    """What differs from `one` to `other`. `base`: the folder of the machine that both are over. `processes`,
    `environment`: None if they are not known of both, or were not compared.
    """

    files: list[FileFacts]
    one: SideFacts | None = None
    other: SideFacts | None = None
    base: str | None = None
    processes: ProgramsFacts | None = None
    environment: EnvironmentFacts | None = None

    @property
    def is_different(self) -> bool:
        beside: list[Mapping[str, Any]] = [self.processes or {}, self.environment or {}]
        return bool(self.files) or any(names for part in beside for names in part.values())

    def take(self, line: Mapping[str, Any]) -> None:
        """Add what a line of the answer tells."""
        self.files += line.get("changes", [])
        for name in ("one", "other", "base", "processes", "environment"):
            if name in line:
                setattr(self, name, line[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Work that the daemon does without a client that waits for it (docs/protocol.md, section 1).

    `state`: `running`, `done`, `failed` or `cancelled`. `result`: what the work has given; `error`: the parts of the
    error that it has failed with. Lists have no results.
    """

    id: str
    kind: str
    state: str
    started: str
    ended: str | None
    progress: dict[str, int | None]
    result: object = None
    error: dict[str, str | int] | None = None


def exec_result(end: Mapping[str, object], output: bytearray) -> ExecResult:
    """The fields of the `x` frame of an exec, and what came before it."""
    return ExecResult(
        **asdict(_how_ended(end)),
        output=bytes(output),
        signal=str(end.get("signal", "")),
        new_shell=end.get("new_shell") is True,
        state_lost=end.get("state_lost") is True,
    )


def run_result(end: Mapping[str, object], output: bytearray, errors: bytearray) -> RunResult:
    """As `exec_result`, of a run."""
    return RunResult(**asdict(_how_ended(end)), stdout=bytes(output), stderr=bytes(errors))


def _how_ended(end: Mapping[str, object]) -> Ending:
    """The fields of an `x` frame."""
    code = end.get("exit")
    return Ending(
        exit=code if isinstance(code, int) else EXIT_FAILED,
        by=str(end.get("by", "command")),
        said=str(end.get("said") or ""),
        ended=end.get("ended") is True,
    )


def sink_of(on_output: OnOutput | None, output: bytearray) -> Callable[[memoryview], None]:
    """What takes the output of a command: `on_output`, else `output`."""
    if on_output is None:
        return output.extend

    def pass_on(view: memoryview) -> None:
        on_output(bytes(view))

    return pass_on
