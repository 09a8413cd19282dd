"""A live session as a capture sees it: what `capture` asks of the object that holds the session open."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Protocol

from waypoint.model.records import Fixed, Setting, ShellLayer, TerminalLayer
from waypoint.processes.respawn.manifest import Family


class SubjectFacts(NamedTuple):
    """The facts of a session that do not change while it lives.

    `tree`: the name of the session's upper tree in the pool. `cgroup`: the path of the session's cgroup2 group.
    `init_pid`: the host's pid of the session's pid 1. `fixed`: what its images will have, too.
    """

    branch: str
    tree: str
    cgroup: str
    init_pid: int
    setting: Setting
    fixed: Fixed


class Subject(Protocol):
    """All methods block. One thread calls them, which is not the event loop's.

    `ask_shell`, `hold` and `go_on` may wait for the event loop. All other methods may be called while the session is
    frozen, and never wait for the event loop.
    """

    @property
    def facts(self) -> SubjectFacts: ...

    def processes(self) -> list[int]:
        """Pids of all processes of the session, as the host sees them."""
        ...

    def leader(self) -> int:
        """The host's pid of the leader of the terminal's session, the shell; 0 if there is none."""
        ...

    def ask_shell(self) -> ShellLayer | None:
        """Have the shell write its state into the session's files.

        Returns None if the shell is busy, does not answer, or is of a kind that Waypoint does not know.
        """
        ...

    @property
    def is_shell_lost(self) -> bool:
        """Whether the shell could not write its state at its last prompt."""
        ...

    def hold(self) -> None:
        """Stop the daemon's work on the terminal until `go_on`: the daemon neither reads nor types, and a command in
        flight goes no step further.
        """
        ...

    def drain(self) -> None:
        """Read all output of the terminal that was not read yet."""
        ...

    def shell_holds(self) -> bool:
        """True if the shell has run nothing since `ask_shell`. To be called after `drain`."""
        ...

    def take_typed_ahead(self) -> None:
        """Move typed input that no program has read yet from the terminal into a file: CRIU would spoil this input."""
        ...

    def give_typed_ahead_back(self) -> None:
        """Undo `take_typed_ahead`. Does nothing if no input was taken, or if the input was given back already."""
        ...

    def save_terminal(self, folder: Path) -> TerminalLayer:
        """Write copies of the scrollback, of the record of the command in flight and of the input that was typed ahead
        into `folder`. To be called after `drain`. Raises OSError.
        """
        ...

    def go_on(self) -> None:
        """Undo `hold`. To be called when the session runs again."""
        ...


def family_of(subject: Subject, apart: Collection[int] = ()) -> Family:
    """The processes that the session has now. `apart`: those that are held outside of its group."""
    return Family(subject.facts.init_pid, subject.leader(), [*subject.processes(), *apart])
