"""`fork ... -- CMD`: runs the command in all forks at the same time."""

import resource
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from waypoint.cli.fast.exec_json import as_text
from waypoint.cli.fast.streaming import GRACE_S, error_of, forward_signals
from waypoint.cli.output import (
    EXIT_FAILED,
    EXIT_NO_READER,
    error_value,
    note,
    print_error,
    print_json,
    wants_colour,
    write_all,
)
from waypoint.client.quoting import exec_text
from waypoint.client.running import Running
from waypoint.model.errors import WaypointError, from_json

EXIT_ONE_FAILED = 1
_ENDED_AT_ONCE = 8
_COLOURS = (36, 33, 32, 35, 34, 31)  # SGR codes of foreground colours
Sink = Callable[[str, bytes], None]
"""Is called with the branch of a fork and a piece of its output; with b"" at the end of the output."""


class Lines:
    """Prints the output of several commands on stdout, in whole lines that begin with the branch. Thread-safe.

    When stdout cannot be written, `code` is set to this process's exit status, `on_break` is called, and the rest is
    dropped.
    """

    def __init__(self, branches: Sequence[str], *, coloured: bool, on_break: Callable[[], None]) -> None:
        width = max(map(len, branches))
        self._heads = {
            branch: _head(branch.ljust(width), _COLOURS[number % len(_COLOURS)] if coloured else None)
            for number, branch in enumerate(branches)
        }
        self._begun = {branch: bytearray() for branch in branches}
        self._lock = threading.Lock()
        self._on_break = on_break
        self.code = 0

    def __call__(self, branch: str, data: bytes) -> None:
        """Print the lines that `data` completes; at the end (b"") also a last line without a newline."""
        begun = self._begun[branch]
        whole, newline, rest = (data or (b"\n" if begun else b"")).rpartition(b"\n")
        if newline:
            self._print(branch, bytes(begun) + whole)
            begun.clear()
        begun += rest

    def _print(self, branch: str, whole: bytes) -> None:
        text = b"".join(self._heads[branch] + line + b"\n" for line in whole.split(b"\n"))
        with self._lock:
            if self.code:
                return
            try:
                write_all(1, memoryview(text))
                return
            except BrokenPipeError:
                self.code = EXIT_NO_READER
            except OSError as error:
                self.code = EXIT_FAILED
                print_error(f"cannot write to stdout: {error.strerror}")
        self._on_break()


def _head(word: str, colour: int | None) -> bytes:
    return (f"{word} | " if colour is None else f"\x1b[{colour}m{word} |\x1b[0m ").encode()


class Command(NamedTuple):
    """`words`: of the command, or a single shell text. `request`: other fields of each request."""

    words: Sequence[str]
    request: dict[str, object]

    def request_for(self, number: int, fork: dict[str, object]) -> dict[str, object]:
        """Return the request for one fork, with `{i}` and `{branch}` replaced in the words."""
        own = [word.replace("{i}", str(number)).replace("{branch}", str(fork["branch"])) for word in self.words]
        return {"text": exec_text(own), "tty": False, **self.request}


class Member:
    """The command in one fork."""

    def __init__(self, home: str, facts: dict[str, object], request: dict[str, object] | WaypointError) -> None:
        """`request`: of the command, or why the session could not start."""
        self.facts = facts
        self.is_started = not isinstance(request, WaypointError)
        self._home = home
        self.branch = str(facts["branch"])
        self.exit = EXIT_FAILED
        self.error: WaypointError | None = None
        self.said = ""  # why waypoint ended the command, or could not run it
        self._command: Running | None = None
        try:
            if isinstance(request, WaypointError):
                raise request
            self._command = Running(home, self.branch, "exec", request)
        except WaypointError as error:
            self._fail(error)

    def signal(self, name: str, grace_s: float | None = None) -> None:
        """Send the command a signal. `grace_s`: `drive` stops waiting for the command after so many seconds."""
        if self._command is not None:
            self._command.signal(name, grace_s)

    def drive(self, sink: Sink) -> None:
        """Pass the command's output to `sink` until it ends, then set `exit` and `said`."""

        def take(view: memoryview) -> None:
            sink(self.branch, bytes(view))

        try:
            end = self._command.wait(take, take) if self._command is not None else {}
        except WaypointError as error:
            self._fail(error)
        except TimeoutError:  # the reader of stdout is gone, and the command did not end within its grace
            self.exit = EXIT_NO_READER
        else:
            code = end.get("exit")
            self.exit = code if isinstance(code, int) else EXIT_FAILED
            failed = error_of(self._home, self.branch, end)
            if failed is not None:
                self._fail(failed)
            elif end.get("by") == "waypoint":
                self.said = str(end.get("said", ""))
        sink(self.branch, b"")

    def _fail(self, error: WaypointError) -> None:
        self.error, self.said = error, str(error)


class Fleet:
    """The commands in all forks, each with a thread of its own."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self.is_interrupted = False
        self.wake_fd = -1  # set by `forward_signals`, but not used: a signal interrupts join()

    def signal(self, name: str) -> None:
        self.is_interrupted = True
        for member in self._members:
            member.signal(name)

    def interrupt(self) -> None:
        """Interrupt all commands, and wait for GRACE_S seconds at most until they end."""
        for member in self._members:
            member.signal("INT", GRACE_S)

    def drive(self, sink: Sink) -> None:
        """Pass the output of all commands to `sink`, and this process's signals to them, until all have ended."""
        forward_signals(self)
        threads = [threading.Thread(target=member.drive, args=(sink,), daemon=True) for member in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def members_of(
    home: str, forks: Sequence[dict[str, object]], failed: Sequence[dict[str, object]], command: Command
) -> list[Member]:
    """Start the command in all `forks`. Return all forks in the order of the request, with those that have `failed` to
    start (answers.failed_of).
    """
    _use_all_open_files()
    not_started = {one["number"]: one for one in failed}
    begun = iter(forks)
    members: list[Member] = []
    for number in range(1, len(forks) + len(failed) + 1):
        lost = not_started.get(number)
        if lost is None:
            fork = next(begun)
            members.append(Member(home, fork, command.request_for(number, fork)))
        else:
            error = lost["error"]
            facts = {**dict.fromkeys(forks[0]), "branch": lost["branch"]}  # at least one has started
            members.append(Member(home, facts, from_json(error if isinstance(error, dict) else {})))
    return members


def _use_all_open_files() -> None:
    """Raise the soft limit of open files: each command takes four, and the usual limit is 1024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_in_each(members: Sequence[Member], *, as_json: bool) -> int:
    """Follow the commands of the members to their ends, and print the output. Returns the exit status: 1 if a command
    failed.

    With `as_json`, holds all output in memory and prints the same fields of each fork at the end: those of `fork`,
    `exit`, `output`, `said` (why waypoint ended the command), and `error`, if waypoint itself failed (exit 125), also
    to start the session (`pid` is null then).
    """
    fleet = Fleet(members)
    code = _run_for_json(fleet, members) if as_json else _run_for_people(fleet, members)
    for member in members:
        if member.said:
            print_error(f"{member.branch}: {member.said}")
        elif member.exit and not code and not as_json:
            print_error(f"{member.branch}: the command ended with status {member.exit}")
    if fleet.is_interrupted:
        running = " ".join(member.branch for member in members if member.is_started)
        note(f"these sessions are still running; to end them: waypoint stop {running}")
    return code or (EXIT_ONE_FAILED if any(member.exit for member in members) else 0)


def discard(home: str, branches: Sequence[str]) -> None:
    """End the sessions and delete their files. Print those that could not be ended."""
    from concurrent.futures import ThreadPoolExecutor

    from waypoint.client.sdk import Client

    def end(branch: str) -> None:
        try:
            Client(home).session(branch).stop(discard=True)
        except WaypointError as error:
            note(f"{branch} remains: {error.said}")

    with ThreadPoolExecutor(_ENDED_AT_ONCE) as threads:
        list(threads.map(end, branches))


def _run_for_people(fleet: Fleet, members: Sequence[Member]) -> int:
    coloured = wants_colour()
    lines = Lines([member.branch for member in members], coloured=coloured, on_break=fleet.interrupt)
    fleet.drive(lines)
    return lines.code


def _run_for_json(fleet: Fleet, members: Sequence[Member]) -> int:
    outputs = {member.branch: bytearray() for member in members}

    def keep(branch: str, data: bytes) -> None:
        outputs[branch] += data

    fleet.drive(keep)
    records = []
    for member in members:
        failed = {"error": None} if member.error is None else error_value(member.error, member.exit)
        output = as_text(bytes(outputs[member.branch]))
        records.append({**member.facts, "exit": member.exit, **output, "said": member.said or None, **failed})
    print_json(records)
    return 0
