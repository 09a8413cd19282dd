"""One `exec` or `run`: its input, output, signals and end, across restarts of the daemon.

Every `waypoint exec` loads this module: wire.py says what may be imported here.
"""

import os
import select
import time

from waypoint.client import wire
from waypoint.client.link import open_channel, quote_branch
from waypoint.model import plainjson
from waypoint.model.errors import Failed, from_json
from waypoint.model.paths import spelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Sink = Callable[[memoryview], None]

INPUT_BYTES = 65536  # the most bytes of stdin read at a time
# Bytes of stdin buffered for a command that does not read. When the buffer is full, the client stops reading stdin.
MAX_QUEUED_BYTES = 4 * INPUT_BYTES
# How many daemons in a row may accept the stream and die before they send a frame.
MAX_DEATHS = 5
_OUTPUT, _ERRORS, _NOTE, _END = b"oenx"


class Command:
    """A command in a session. The constructor sends the request; `wait` copies input and output until it ends."""

    def __init__(
        self, home: str, branch: str, verb: str, request: dict[str, object], *, shows_waits: bool = False
    ) -> None:
        """Send the request. `verb`: `exec` or `run`. `shows_waits`: show a long wait for the shell (`wire.show_waits`).
        Raises as `open_channel`; Failed if the daemon dies (for an exec:
        if MAX_DEATHS daemons in a row die).
        """
        self._home = home
        self._branch = branch
        self._on = f"branch {branch}"
        self._target = f"/v1/sessions/{quote_branch(branch)}/{verb}"
        self._received = 0  # bytes of output: an exec continues from there after a cut
        self._exec_id = ""
        self._deaths = 0
        self._shows_waits = shows_waits
        self._waiting: wire.Wait | None = None  # the wait for the shell that the user sees
        self._input = -1
        self._has_stdin = bool(request.get("stdin"))
        self._stdin_broke = False
        self.deadline: float | None = None  # time.monotonic() at which `wait` gives up
        # A descriptor that wakes `wait` when a signal arrives (signal.set_wakeup_fd); -1: none. Without it, a signal
        # that arrives just before a system call would be handled only after the next output.
        self.wake_fd = -1
        # With an id chosen by the client, the request can be repeated if the daemon dies before it answers.
        self._request = {**request, "id": os.urandom(8).hex()} if verb == "exec" else request
        self._channel = self._open(self._request)

    def signal(self, name: str) -> None:
        """Send the signal `name` (`INT`, `TERM`, ...) to the command. May be called in a signal handler."""
        self._channel.out.queue("k", name.encode())
        self._channel.out.flush()

    def queue_signal(self, name: str) -> None:
        """Queue a signal in another thread than that of `wait`. `wait` sends it when `wake_fd` becomes readable."""
        self._channel.out.queue("k", name.encode())

    def resize(self, rows: int, cols: int) -> None:
        self._channel.out.queue("w", rows.to_bytes(2, "big") + cols.to_bytes(2, "big"))
        self._channel.out.flush()

    def wait(self, on_output: "Sink", on_errors: "Sink", input_fd: int = -1) -> dict[str, object]:
        """Copy input and output until the command has ended. Returns the fields of the `x` frame.

        `on_output` and `on_errors` get views that are valid only during the call. `input_fd`: the source of the
        command's input; -1: none. Raises the daemon's error, Failed if the stream cannot be resumed, or TimeoutError at
        `deadline`.
        """
        self._input = input_fd
        try:
            while True:
                try:
                    self._wait_ready(self._channel.out.flush())
                    self._channel.fill()
                    end = self._pass_on(on_output, on_errors)
                    if end is not None:
                        return self._checked(end)
                except wire.Cut as cut:
                    self._resume_after(cut)
        finally:
            self._show("{}")
            self._channel.close()

    def _open(self, request: dict[str, object]) -> wire.Channel:
        while True:
            try:
                return open_channel(self._home, self._target, request, stages=self._shows_waits)
            except wire.Cut as cut:
                self._deaths += 1
                if "id" not in self._request or self._deaths > MAX_DEATHS:
                    raise self._lost(str(cut)) from cut

    def _wait_ready(self, queued: int) -> None:
        """Copy input until there is something to receive. `queued`: bytes to be sent. Raises TimeoutError."""
        while self._input >= 0 or self.wake_fd >= 0 or self.deadline is not None or queued:
            poll = select.poll()
            if self.wake_fd >= 0:
                poll.register(self.wake_fd, select.POLLIN)
            poll.register(self._channel.fileno(), select.POLLIN | (select.POLLOUT if queued else 0))
            if self._input >= 0 and queued < MAX_QUEUED_BYTES:
                poll.register(self._input, select.POLLIN)
            ready = dict(poll.poll(self._remaining_ms() if self._waiting is None else 1000 * wire.REDRAW_S))
            if not ready and self._remaining_ms() == 0:
                raise TimeoutError
            if self._waiting is not None:
                self._waiting.show()
            if self.wake_fd in ready:
                os.read(self.wake_fd, 64)  # the signal handlers have run
            if self._input in ready:
                self._read_input()
            queued = self._channel.out.flush()
            if ready.get(self._channel.fileno(), 0) & ~select.POLLOUT:
                return

    def _remaining_ms(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic()) * 1000

    def _read_input(self) -> None:
        try:
            data = os.read(self._input, INPUT_BYTES)
        except BlockingIOError:
            return
        except OSError:  # stdin is closed, or its terminal has hung up
            data = b""
        self._channel.out.queue("i", data)
        if not data:
            self._input = -1

    def _pass_on(self, on_output: "Sink", on_errors: "Sink") -> dict[str, object] | None:
        """Pass on all received output. Returns the fields of the `x` frame if it has arrived."""
        while (item := self._channel.take()) is not None:
            kind, payload = item
            self._deaths = 0
            if self._waiting is not None and kind != _NOTE:
                self._show("{}")
            if kind == _OUTPUT:
                self._received += len(payload)
                on_output(payload)
            elif kind == _ERRORS:
                on_errors(payload)
            elif kind in (_NOTE, _END):
                facts = _facts(payload)
                if kind == _END:
                    return facts
                if isinstance(facts.get("stage"), dict):
                    self._show(plainjson.encode(facts["stage"]))
                if isinstance(facts.get("exec"), str):
                    self._exec_id = str(facts["exec"])
        return None

    def _show(self, stage: str) -> None:
        """Show the stage of the wait for the shell; "{}": end that."""
        if stage != "{}":
            self._waiting = self._waiting or wire.Wait()
            self._waiting.stage = stage
            self._waiting.show()
        elif self._waiting is not None:
            self._waiting.end()
            self._waiting = None

    def _resume_after(self, cut: wire.Cut) -> None:
        """Resume the stream with the next daemon, which has kept the output. Raises Failed if this is impossible."""
        self._channel.close()
        self._deaths += 1
        if "id" not in self._request:
            raise self._lost(str(cut))
        if self._deaths > MAX_DEATHS:
            raise self._lost(f"{MAX_DEATHS} daemons in a row died")
        # The command's stdin ended with the daemon; its output can still be received.
        self._stdin_broke = self._stdin_broke or self._has_stdin
        if self._has_stdin:
            self._input = -1
        unsent = self._channel.out.unsent("k")
        again = {"resume": self._exec_id, "offset": self._received} if self._exec_id else self._request
        self._channel = self._open(again)
        for payload in unsent:
            self._channel.out.queue("k", payload)

    def _checked(self, end: dict[str, object]) -> dict[str, object]:
        parts = end.get("error")
        if isinstance(parts, dict):
            raise from_json(parts)
        if self._stdin_broke:
            raise self._lost("the daemon was replaced, and the command may have got only a part of its input")
        return end

    def _lost(self, said: str) -> Failed:
        next_step = f"see the output of the session: {spelled(self._home, 'logs', self._branch)}"
        if "id" not in self._request:  # the output of a `run` is not on the terminal
            look = spelled(self._home, "run", "-b", self._branch, "--", "ps", "ax")
            next_step = f"see whether it is still running, before you start it again: {look}"
        return Failed("follow the command in", self._on, said, next_step, code="connection-lost")


def _facts(payload: memoryview) -> dict[str, object]:
    try:
        return plainjson.decode_object(bytes(payload))
    except ValueError as error:
        raise wire.malformed(f"a frame that is not JSON: {error}") from error
