"""The interface of a live session that is being captured."""

from pathlib import Path
from typing import NamedTuple, Protocol

from waypoint.model.records import Fixed, Setting, ShellLayer, TerminalLayer


class SubjectFacts(NamedTuple):
    """The unchanging facts of a session. `tree`: its upper tree in the pool. `init_pid`: the host's pid of its pid 1.
    `fixed`: settings that its images share.
    """

    branch: str
    tree: str
    cgroup: str
    init_pid: int
    setting: Setting
    fixed: Fixed


class Subject(Protocol):
    """All methods block, and are called in one thread other than the event loop's. Only `ask_shell`, `hold` and `go_on`
    may wait for the event loop.
    """

    @property
    def facts(self) -> SubjectFacts: ...

    def processes(self) -> list[int]: ...

    def leader(self) -> int:
        """Return the host's pid of the terminal's session leader (the shell); 0 if there is none."""
        ...

    def ask_shell(self) -> ShellLayer | None:
        """Let the shell write its state into the session's files. Return None if the shell is busy, does not answer, or
        is of an unknown kind.
        """
        ...

    @property
    def is_shell_lost(self) -> bool:
        """Whether the shell could not write its state at its last prompt."""
        ...

    def hold(self) -> None:
        """Stop the daemon's reading and typing in the terminal until `go_on`."""
        ...

    def drain(self) -> None: ...

    def shell_holds(self) -> bool:
        """Whether the shell has run nothing since `ask_shell`, so that its answer is still valid. Call it after
        `drain`.
        """
        ...

    def take_typed_ahead(self) -> None:
        """Move typed input that no program has read yet from the terminal into a file, because CRIU would alter it."""
        ...

    def give_typed_ahead_back(self) -> None:
        """Undo `take_typed_ahead`. Idempotent."""
        ...

    def save_terminal(self, folder: Path) -> TerminalLayer:
        """Copy scrollback, record of the command in flight and typed-ahead input into `folder`, after `drain`."""
        ...

    def go_on(self) -> None:
        """Undo `hold`. Call it when the session runs again."""
        ...
