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

    def take_unread(self) -> None:
        """Move the unread bytes of all terminals of the session into a file, because CRIU would alter them. Call it
        after `drain`.
        """
        ...

    def put_unread_back(self) -> None:
        """Undo `take_unread`, while the session is frozen. Idempotent."""
        ...

    def save_terminal(self, folder: Path) -> TerminalLayer:
        """Copy scrollback, record of the command in flight and unread bytes into `folder`, after `drain`."""
        ...

    def note_rest(self, capture_id: str) -> None:
        """Look at the frozen session at the end of its dump, so that a later request can tell whether it is still as in
        this capture.
        """
        ...

    def go_on(self) -> None:
        """Undo `hold`. Call it when the session runs again."""
        ...
