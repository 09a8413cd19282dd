"""Waypoint as a Python library: sessions, their commands, checkpoints and forks. Synchronous: one call at a time
per object.

    from waypoint.client import Client

    session = Client().start("fix")
    session.exec("cd /srv && export CI=1")
    session.checkpoint("ready")
    for copy in Client().fork("ready", count=2):
        print(copy.exec(["make", "-j4"]).output.decode())

In a `with`, a session that was started or forked by this program ends with it; its files are kept. Whatever goes wrong
is a WaypointError (waypoint.model.errors) with the four parts of its message. A call that finds no daemon starts one,
if this user may.
"""

import os

from waypoint.client.address import find_home
from waypoint.client.home_parts import HomeParts
from waypoint.client.link import ask, ask_running, ask_status, quote_branch
from waypoint.client.parsing import field_of, parse, parse_list
from waypoint.model import facts
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.names import parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Literal, Self, Unpack

    from waypoint.client.attach import Attachment
    from waypoint.client.results import (
        CheckpointOptions,
        ExecResult,
        LowerTier,
        OnOutput,
        RunResult,
        StartOptions,
        WantedTier,
    )
    from waypoint.model.facts import (
        Capability,
        CheckpointFacts,
        SessionFacts,
        StatusFacts,
        StopFacts,
        StopsFacts,
        StrangerFacts,
        SurveyedProcess,
    )

_CREATED = 201


class Client(HomeParts):
    """One home and its daemon."""

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        """`home` None: $WAYPOINT_HOME, else this machine's. Nothing is asked of the daemon yet."""
        super().__init__(find_home(os.fspath(home) if home is not None else None))

    def sessions(self, *, all: bool = False) -> "list[SessionFacts]":
        """Live sessions; with `all`, also branches that could be started again."""
        answer = ask(self.home, "GET", f"/v1/sessions{'?all=1' if all else ''}")
        return parse_list(facts.SessionFacts, answer, "sessions")

    def start(self, branch: str = "main", **options: "Unpack[StartOptions]") -> "Session":
        """Start the branch's session, or find the live one, which keeps the setting it has.

        Returns once the session runs; `facts` of the result is what the daemon says of it.
        """
        status, answer = ask_status(self.home, "POST", "/v1/sessions", {"branch": parse_name(branch), **options})
        found = parse(facts.SessionFacts, field_of(answer, "session"))
        return Session(self, branch, found, is_new=status == _CREATED)

    def session(self, branch: str = "main", *, user: str | None = None) -> "Session":
        """The session of `branch`; the daemon is not asked whether it is live. `user`: the owner, if the session is
        another user's: without it `exec`, `run` and `attach` raise StateConflict.
        """
        return Session(self, parse_name(branch), user=user)

    def fork(
        self,
        name: str,
        *branches: str,
        count: int | None = None,
        prefix: str | None = None,
        tier: "LowerTier | None" = None,
        attach_at: "Mapping[str, str] | None" = None,
    ) -> list["Session"]:
        """Live sessions on new `branches`, all of them or none, each a copy of what `name` stands for.

        In place of branches, `count`: as many, named `<prefix>-1` and so on (`prefix` None: `name`). A `name` that is a
        live branch is captured as it is now. `tier`, `attach_at`: as for restore. Raises StateConflict if one exists.
        """
        body: dict[str, object] = {"name": parse_name(name), "branches": [parse_name(branch) for branch in branches]}
        body |= {"count": count, "prefix": prefix, "tier": tier, "attach_at": dict(attach_at or {})}
        forks = field_of(ask(self.home, "POST", "/v1/forks", body, may_repeat=False), "forks")
        made = (
            [parse(facts.SessionFacts, field_of(fork, "session")) for fork in forks] if isinstance(forks, list) else []
        )
        return [Session(self, one.branch, one, is_new=True) for one in made]

    def stop(self, *branches: str, discard: bool = False, if_live: bool = False) -> "StopsFacts":
        """End the sessions on several branches, as one operation: one undo brings all back. None is ended if one of the
        branches has no session that you may end, unless `if_live`: then those that can be.
        """
        body = {"branches": [parse_name(branch) for branch in branches], "discard": discard}
        body |= {} if if_live else {"whole": True}  # an earlier daemon does not know it
        answer = ask(self.home, "POST", "/v1/stops", body, may_repeat=False)
        return parse(facts.StopsFacts, answer, stopped=parse_list(facts.StopFacts, answer, "stopped"))

    def restore(
        self,
        name: str,
        *,
        only: "Literal['files', 'shell'] | None" = None,
        tier: "LowerTier | None" = None,
        attach_at: "Mapping[str, str] | None" = None,
    ) -> "Session":
        """As Session.restore, on the branch that the capture was taken on; if `name` is a branch, on this branch."""
        body = {"name": parse_name(name), "only": only, "tier": tier, "attach_at": dict(attach_at or {})}
        answer = ask(self.home, "POST", "/v1/restores", body, may_repeat=False)
        found = parse(facts.SessionFacts, field_of(answer, "session"))
        return Session(self, found.branch, found)

    def status(self) -> "StatusFacts":
        return parse(facts.StatusFacts, ask(self.home, "GET", "/v1/status"))

    def running(self) -> "StatusFacts | None":
        """The status of the daemon; None if no daemon runs (none is started)."""
        answer = ask_running(self.home, "GET", "/v1/status")
        return None if answer is None else parse(facts.StatusFacts, answer)

    def strangers(self) -> "list[StrangerFacts]":
        """What lies in the home and is unknown to its names.db; it is kept."""
        return parse_list(facts.StrangerFacts, ask(self.home, "GET", "/v1/strangers"), "strangers")

    def doctor(self) -> "list[Capability]":
        """Try every capability on a throw-away session. Takes seconds."""
        answer = ask(self.home, "POST", "/v1/doctor")
        return parse_list(facts.Capability, answer, "capabilities")

    def events(self, *, follow: bool = True, after: int | None = None) -> "Iterator[dict[str, object]]":
        """What has happened, as far back as the daemon keeps it, and with `follow` what happens from now on.

        `after`: only what follows the event with this `seq`. Each event is an object as in docs/protocol.md, section 1;
        the first is a `begin`. Goes on with the next daemon, after a `restarted`; ends when the daemon is stopped.
        """
        from waypoint.client.following import iter_events

        return iter_events(self.home, follow=follow, after=after)

    def stop_daemon(self) -> None:
        """Stop the daemon and its supervisor, if they run; back when the daemon has ended. Sessions go on."""
        status = self.running()
        if status is None:
            return
        import select

        try:
            ended = os.pidfd_open(status.pid)
        except ProcessLookupError:  # it has just ended
            return
        try:
            ask_running(self.home, "POST", "/v1/daemon/stop")
            watch = select.poll()  # select.select takes no descriptor above 1,023
            watch.register(ended, select.POLLIN)
            watch.poll()
        finally:
            os.close(ended)


class Session:
    """The session of one branch. A `with` ends what this object has begun, and nothing else: if Client.start or
    Client.fork has made the session, and it still lives, it is stopped, and its files are kept.
    """

    def __init__(
        self,
        client: Client,
        branch: str,
        known: "SessionFacts | None" = None,
        *,
        user: str | None = None,
        is_new: bool = False,
    ) -> None:
        """Use Client.start or Client.session. `known`: what was answered at the start. `user`: as in Client.session.
        `is_new`: the session was made for this object.
        """
        self._client = client
        self._begun = known.id if known is not None and is_new else None
        self._user = user if user is not None or known is None else known.user
        self._known = known
        self.branch = branch

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._begun is not None and self.refresh().id == self._begun:
                self.stop()
        except (UnknownName, StateConflict):  # it has ended meanwhile
            return

    @property
    def facts(self) -> "SessionFacts":
        """What the daemon has said of the session at its start; if this object has not started it, what it says now."""
        return self._known if self._known is not None else self.refresh()

    def refresh(self) -> "SessionFacts":
        """Ask the daemon for the facts of now. Raises UnknownName if the branch has no session."""
        answer = ask(self._client.home, "GET", self._path())
        self._known = parse(facts.SessionFacts, field_of(answer, "session"))
        return self._known

    def survey(self) -> "list[SurveyedProcess]":
        """Its processes, each with the tier that a capture would reach, before anybody needs one."""
        return parse_list(facts.SurveyedProcess, ask(self._client.home, "GET", f"{self._path()}/survey"), "processes")

    def exec(
        self,
        command: "str | Sequence[str]",
        *,
        timeout_s: float | None = None,
        wait_prompt_s: float | None = None,
        stdin: bytes | None = None,
        tty: bool = False,
        on_output: "OnOutput | None" = None,
    ) -> "ExecResult":
        """Run a command line in the session's own shell: text, or a list of words that are quoted.

        `timeout_s` counts from the command's start; at most 0.5 s later the call returns with `exit` 124.
        `wait_prompt_s`: how long to wait for a busy shell (default 5). `tty`: pagers and questions as on a terminal.
        `on_output` gets each piece as it comes; then the result's `output` is empty. Goes on with the next daemon if
        this one dies, but with `stdin`.
        """
        from waypoint.client.quoting import as_json_text, exec_text
        from waypoint.client.results import exec_result, sink_of

        text = as_json_text(command) if isinstance(command, str) else exec_text(list(command))
        request: dict[str, object] = {"text": text, "tty": tty, "stdin": stdin is not None}
        request |= {"timeout_s": timeout_s} if timeout_s is not None else {}
        request |= {"wait_prompt_s": wait_prompt_s} if wait_prompt_s is not None else {}
        output = bytearray()
        sink = sink_of(on_output, output)
        return exec_result(self._carry("exec", request, sink, sink, stdin), output)

    def run(
        self,
        *argv: str,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: "Mapping[str, str] | None" = None,
    ) -> "RunResult":
        """Run a separate process in the session: a program and its arguments. Ends with Failed if the daemon dies
        meanwhile.
        """
        from waypoint.client.quoting import as_json_text
        from waypoint.client.results import run_result

        request: dict[str, object] = {"argv": [as_json_text(word) for word in argv], "stdin": stdin is not None}
        request |= {"cwd": cwd, "env": dict(env or {})}
        output, errors = bytearray(), bytearray()
        return run_result(self._carry("run", request, output.extend, errors.extend, stdin), output, errors)

    def attach(self, rows: int = 24, cols: int = 80) -> "Attachment":
        """The session's terminal, for shellwrap.proxy or a screen of your own. Survives restarts of the daemon."""
        from waypoint.client.attach import Attachment

        return Attachment(self._client.home, self.branch, rows, cols, {"user": self._user})

    def logs(self, *, follow: bool = False) -> "Iterator[bytes]":
        """The terminal's scrollback, piece by piece; with `follow`, then what comes, until the session ends."""
        from waypoint.client.following import iter_logs

        return iter_logs(self._client.home, self.branch, follow=follow)

    def checkpoint(
        self,
        name: str,
        *,
        tier: "WantedTier" = "auto",
        attach: "Mapping[str, str | os.PathLike[str]] | None" = None,
        **options: "Unpack[CheckpointOptions]",
    ) -> "CheckpointFacts":
        """Capture the session, which goes on, and let `name` stand for the capture.

        `tier`: raise CannotCapture rather than keep less than this. `attach`: by kind (`model`, `trace`), the paths of
        files and folders of the machine that are kept with it. `options`: see CheckpointOptions.
        """
        body: dict[str, object] = {"name": parse_name(name), "tier": tier, **options}
        if attach:
            from waypoint.client.attached.attaching import ToAttach, checkpoint_with

            return parse(facts.CheckpointFacts, checkpoint_with(self._client.home, self.branch, body, ToAttach(attach)))
        return parse(facts.CheckpointFacts, self._ask_once("checkpoint", body))

    def restore(
        self,
        name: str,
        *,
        only: "Literal['files', 'shell'] | None" = None,
        tier: "LowerTier | None" = None,
        attach_at: "Mapping[str, str] | None" = None,
        lose_processes: bool = False,
    ) -> "SessionFacts":
        """Bring back what `name` stands for, in place; start the session with it if it is not live.

        What is replaced is captured first, with its processes: CannotCapture if one cannot be kept, unless
        `lose_processes`: then those that can be. Attached terminals stay attached. `tier`: bring back no more than a
        capture of this tier would keep. `attach_at`: by kind, where in the session what is attached goes.
        """
        body: dict[str, object] = {"name": parse_name(name), "only": only, "lose_processes": lose_processes}
        body |= {"tier": tier, "attach_at": dict(attach_at or {})}
        answer = self._ask_once("restore", body)
        self._known = parse(facts.SessionFacts, field_of(answer, "session"))
        self._begun = self._known.id if self._begun is not None else None
        return self._known

    def stop(self, *, discard: bool = False, checkpoint: str | None = None) -> "StopFacts":
        """End the session and keep its files as the branch's tip, or throw them away.

        `checkpoint`: the name of a checkpoint that is made first, with the processes, and becomes the branch's tip.
        """
        return parse(facts.StopFacts, self._ask_once("stop", {"discard": discard, "checkpoint": checkpoint}))

    def _path(self) -> str:
        return f"/v1/sessions/{quote_branch(self.branch)}"

    def _ask_once(self, verb: str, body: dict[str, object]) -> object:
        return ask(self._client.home, "POST", f"{self._path()}/{verb}", body, may_repeat=False)

    def _carry(
        self,
        verb: str,
        request: dict[str, object],
        on_output: "Callable[[memoryview], None]",
        on_errors: "Callable[[memoryview], None]",
        stdin: bytes | None,
    ) -> dict[str, object]:
        from waypoint.client.command import Command

        input_fd = -1 if stdin is None else _readable(stdin)
        try:
            command = Command(self._client.home, self.branch, verb, {**request, "user": self._user})
            return command.wait(on_output, on_errors, input_fd)
        finally:
            if input_fd >= 0:
                os.close(input_fd)


def _readable(content: bytes) -> int:
    """A descriptor, the caller's to close, from which `content` can be read."""
    fd = os.memfd_create("waypoint-stdin", os.MFD_CLOEXEC)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
