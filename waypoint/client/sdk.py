"""Waypoint as a Python library: sessions, their commands, checkpoints and forks. Synchronous.

One call at a time per object.

    from waypoint.client import Client

    session = Client().start("fix")
    session.exec("cd /srv && export CI=1")
    session.checkpoint("ready")
    for copy in Client().fork("ready", count=2):
        print(copy.exec(["make", "-j4"]).output.decode())

A `with` stops the session at its end, if this program started or forked it; the files are kept.

    with Client().start("fix") as session:
        if session.exec("make", timeout_s=600).timed_out: ...

All errors are WaypointErrors (waypoint.model.errors). A call that finds no daemon starts one, if this user may.
"""

import contextlib
import os
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Literal, Self, Unpack

from waypoint.client.address import find_home
from waypoint.client.attach import Attachment
from waypoint.client.command import Command
from waypoint.client.following import JobCalls, iter_events, iter_logs
from waypoint.client.link import ask, ask_running, ask_status, quote_branch
from waypoint.client.quoting import as_json_text, exec_text
from waypoint.client.results import (
    ExecResult,
    Limits,
    RunResult,
    StartOptions,
    WantedTier,
    conditions_in,
    field_of,
    how_ended,
    parse,
    parse_list,
    ports_in,
)
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.names import parse_name
from waypoint.model.session_facts import (
    Capability,
    CriuLogFacts,
    PortFacts,
    SessionFacts,
    StatusFacts,
    StopFacts,
    StrangerFacts,
    SurveyedProcess,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # loaded only when they are used: most commands do not need them
    from waypoint.client.bases import Bases
    from waypoint.client.files import Files
    from waypoint.client.history import ApplyPlan, History
    from waypoint.model.facts import ApplyFacts, ChangeFacts, CheckpointFacts, PointFacts, PointMadeFacts
    from waypoint.model.profile_facts import ProfileFacts

_CREATED = 201
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
OnOutput = Callable[[bytes], object]


class Client:
    """One home and its daemon."""

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        """`home` None: $WAYPOINT_HOME, else this machine's. Does not contact the daemon."""
        self.home = find_home(os.fspath(home) if home is not None else None)

    def sessions(self, *, all: bool = False) -> list[SessionFacts]:
        """Live sessions; with `all`, also branches that could be started again."""
        answer = ask(self.home, "GET", f"/v1/sessions{'?all=1' if all else ''}")
        return parse_list(SessionFacts, answer, "sessions")

    def start(self, branch: str | None = None, **options: Unpack[StartOptions]) -> "Session":
        """Start the branch's session, or return the live one, which keeps its options. Returns when the session is
        running. Without `branch`: `main`, which must not be another user's.
        """
        named = {"branch": parse_name(branch)} if branch is not None else {"branch": "main", "default_branch": True}
        status, answer = ask_status(self.home, "POST", "/v1/sessions", {**named, **options})
        facts = parse(SessionFacts, field_of(answer, "session"))
        return Session(self, facts.branch, facts, is_new=status == _CREATED)

    def session(self, branch: str = "main", *, user: str | None = None) -> "Session":
        """The session of `branch`, without asking the daemon whether it is live. `user`: the owner, if that is another
        user; without it `exec`, `run` and `attach` raise StateConflict.
        """
        return Session(self, parse_name(branch), user=user)

    def fork(
        self,
        name: str,
        *branches: str,
        count: int | None = None,
        prefix: str | None = None,
        attach_at: Mapping[str, str] = {},
        tier: WantedTier = "auto",
        **limits: Unpack[Limits],
    ) -> list["Session"]:
        """Start sessions on new `branches`, all of them or none, each a copy of the capture `name`.

        Instead of branches, `count`: so many, named `<prefix>-1` and so on (`prefix` None: `name`). If `name` is a live
        branch, its session is captured now. `attach_at`: paths in the new sessions at which attached layers of the
        capture are placed, by kind. `tier`: as in Session.restore. `limits`: of each session, in place of those of
        `name`. Raises StateConflict if a branch exists.
        """
        body: dict[str, object] = {"name": parse_name(name), "branches": [parse_name(branch) for branch in branches]}
        body |= {"count": count, "prefix": prefix, **limits, **_asked(tier, attach_at)}
        answer = field_of(ask(self.home, "POST", "/v1/forks", body, may_repeat=False), "forks")
        made = [parse(SessionFacts, field_of(fork, "session")) for fork in answer] if isinstance(answer, list) else []
        return [Session(self, facts.branch, facts, is_new=True) for facts in made]

    @property
    def jobs(self) -> JobCalls:
        """Work that the daemon does in the background."""
        return JobCalls(self.home)

    @property
    def history(self) -> "History":
        """Captures, branches and the operation log."""
        from waypoint.client.history import History

        return History(self.home)

    @property
    def bases(self) -> "Bases":
        """Pinned bases."""
        from waypoint.client.bases import Bases

        return Bases(self.home)

    def files(self, name: str) -> "Files":
        """The files of a capture, or of a branch: its running session, if there is one."""
        from waypoint.client.files import Files

        return Files(self.home, name)

    def apply(self, plan: "ApplyPlan") -> "ApplyFacts":
        """Carry out a plan of `history.plan_apply`: bring the changes that it shows onto this machine."""
        return self.history.carry_out(plan)

    def umount(self, point: str) -> None:
        """End a mount of Files.mount. Raises StateConflict if it is in use."""
        body = {"point": as_json_text(os.path.abspath(point))}
        ask(self.home, "POST", "/v1/mounts/remove", body, may_repeat=False)

    def restore(self, name: str, *, only: Literal["files", "shell"] | None = None) -> "Session":
        """Restore a capture like Session.restore, on the branch where it was taken; if `name` is a branch, on
        `name`.
        """
        answer = ask(self.home, "POST", "/v1/restores", {"name": parse_name(name), "only": only}, may_repeat=False)
        facts = parse(SessionFacts, field_of(answer, "session"))
        return Session(self, facts.branch, facts)

    def status(self) -> StatusFacts:
        return parse(StatusFacts, ask(self.home, "GET", "/v1/status"))

    def running(self) -> StatusFacts | None:
        """The status of the daemon; None if none is running. Starts no daemon."""
        answer = ask_running(self.home, "GET", "/v1/status")
        return None if answer is None else parse(StatusFacts, answer)

    def strangers(self) -> list[StrangerFacts]:
        """Files and processes of the home that its names.db does not know. They are kept."""
        return parse_list(StrangerFacts, ask(self.home, "GET", "/v1/strangers"), "strangers")

    def doctor(self) -> list[Capability]:
        """Try every capability on a temporary session. Takes seconds."""
        answer = ask(self.home, "POST", "/v1/doctor")
        return parse_list(Capability, answer, "capabilities")

    def profiles(self) -> "list[ProfileFacts]":
        """The workload profiles of the home, by name, and the files that are not used because they have errors."""
        from waypoint.model.profile_facts import ProfileFacts, ProgramTest

        found = parse_list(ProfileFacts, ask(self.home, "GET", "/v1/profiles"), "profiles")
        tests = [parse(ProgramTest, one.test) if one.test is not None else None for one in found]
        return [replace(one, test=test) for one, test in zip(found, tests, strict=True)]

    def criu_log(self, name: str) -> str:
        """CRIU's log of a failed checkpoint or restore, whose error names it: its end, at most 1 MiB."""
        answer = ask(self.home, "GET", f"/v1/criu/logs/{quote_branch(parse_name(name))}")
        return parse(CriuLogFacts, field_of(answer, "log")).text

    def events(self, *, follow: bool = True, after: int | None = None) -> Iterator[dict[str, object]]:
        """The events that the daemon has kept, and with `follow` further events.

        `after`: only events after the event with this `seq`. docs/protocol.md, section 1, describes the events; the
        first event is `begin`. If the daemon dies, the next daemon continues, beginning with a `restarted` event. Ends
        when the daemon is stopped.
        """
        return iter_events(self.home, follow=follow, after=after)

    def unlock(self, passphrase: str = "") -> None:
        """Unlock the store of an encrypted home until the daemon ends: with its passphrase, or its key file. Raises
        StateConflict if the passphrase is wrong, or the key file cannot be read.
        """
        ask(self.home, "POST", "/v1/unlock", {"passphrase": as_json_text(passphrase)}, may_repeat=False)

    def stop_daemon(self) -> None:
        """Stop the daemon and its supervisor, if they are running, and wait for the end of the daemon. Sessions
        continue. The next call that needs a daemon starts one.
        """
        status = self.running()
        if status is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it has ended
            ended = os.pidfd_open(status.pid)
            try:
                ask_running(self.home, "POST", "/v1/daemon/stop")
                watch = select.poll()  # select(2) refuses descriptors from 1024 on
                watch.register(ended, select.POLLIN)
                watch.poll()
            finally:
                os.close(ended)


class Session:
    """The session of one branch. At the end of a `with` it is stopped, and its files are kept, if Client.start or
    Client.fork has created it for this object.
    """

    def __init__(
        self,
        client: Client,
        branch: str,
        known: SessionFacts | None = None,
        *,
        user: str | None = None,
        is_new: bool = False,
    ) -> None:
        """Use Client.start or Client.session. `known`: the facts at the start. `user`: as in Client.session. `is_new`:
        whether the session was created for this object.
        """
        self._client = client
        self._begun = known.id if known is not None and is_new else None
        self._user = user if user is not None or known is None else known.user
        self._known = known
        self.branch = branch

    @property
    def is_new(self) -> bool:
        """Whether Client.start or Client.fork has created the session for this object."""
        return self._begun is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._begun is None:
            return
        with contextlib.suppress(UnknownName, StateConflict):  # it has ended
            if self.refresh().id == self._begun:
                self.stop()

    @property
    def facts(self) -> SessionFacts:
        """The facts at the start of the session; if this object has not started it, the present ones."""
        return self._known if self._known is not None else self.refresh()

    def refresh(self) -> SessionFacts:
        """The present facts. Raises UnknownName if the branch has no session."""
        answer = ask(self._client.home, "GET", self._path())
        self._known = parse(SessionFacts, field_of(answer, "session"))
        return self._known

    def survey(self) -> list[SurveyedProcess]:
        """The session's processes, each with the tier that a capture of it alone would reach."""
        return parse_list(SurveyedProcess, ask(self._client.home, "GET", f"{self._path()}/survey"), "processes")

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        wait_prompt_s: float | None = None,
        stdin: bytes | None = None,
        tty: bool = False,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a command line in the session's own shell: text, or a list of words that are quoted.

        `timeout_s` counts from the command's start; at most 0.5 s later the call returns with `exit` 124.
        `wait_prompt_s`: how long to wait for a busy shell (default 5). `tty`: programs may use pagers and ask
        questions. `on_output` gets the output as it arrives; the result's `output` is empty then. If the daemon dies,
        the next one continues, except with `stdin`.
        """
        text = as_json_text(command) if isinstance(command, str) else exec_text(list(command))
        request: dict[str, object] = {"text": text, "tty": tty, "stdin": stdin is not None}
        request |= {"timeout_s": timeout_s} if timeout_s is not None else {}
        request |= {"wait_prompt_s": wait_prompt_s} if wait_prompt_s is not None else {}
        output = bytearray()
        sink = _sink(on_output, output)
        end = self._carry("exec", request, sink, sink, stdin)
        last_signal = str(end.get("signal", ""))
        return ExecResult(
            **asdict(how_ended(end)),
            output=bytes(output),
            signal=last_signal,
            new_shell=end.get("new_shell") is True,
            state_lost=end.get("state_lost") is True,
            code=str(end.get("code") or ""),
            degraded=[*conditions_in(end), *conditions_in(end.get("returned"))],
        )

    def run(
        self,
        *argv: str,
        timeout_s: float | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> RunResult:
        """Run a separate process in the session: a program and its arguments. After `timeout_s` it is stopped, and
        `exit` is 124. Raises Failed if the daemon dies.
        """
        request: dict[str, object] = {"argv": [as_json_text(word) for word in argv], "stdin": stdin is not None}
        request |= {"cwd": cwd, "env": dict(env or {}), "timeout_s": timeout_s}
        output, errors = bytearray(), bytearray()
        end = self._carry("run", request, output.extend, errors.extend, stdin)
        return RunResult(**asdict(how_ended(end)), stdout=bytes(output), stderr=bytes(errors))

    def ports(self) -> list[PortFacts]:
        """The ports on which the session's programs listen, and those that are published on this machine."""
        return ports_in(ask(self._client.home, "GET", f"{self._path()}/ports"))

    def publish(self, port: int | str) -> PortFacts:
        """Forward connections to a port of this machine to a port of the session: its number, then the one on the
        machine is the same if it is free, else any; or `[ADDRESS:]HOST:SESSION`. A published port stays as it is.
        Raises StateConflict if the named port of the machine is in use.
        """
        (found,) = ports_in(self._ask_once("ports", {"port": str(port)}))
        return found

    def close_port(self, port: int | str) -> None:
        """End the publication of a port of the session. Raises UnknownName if it is not published."""
        self._ask_once("ports", {"port": str(port), "remove": True})

    def url(self, port: int, scheme: str = "http") -> str:
        """The URL on this machine of a server in the session. Publishes its port, if that is not done."""
        found = self.publish(port)
        host = _REACHED_AT.get(found["host"] or "", found["host"] or "")
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{found['host_port']}"

    def attach(self, rows: int = 24, cols: int = 80) -> Attachment:
        """The session's terminal, for shellwrap.proxy or a screen of your own. Survives restarts of the daemon."""
        return Attachment(self._client.home, self.branch, rows, cols, {"user": self._user})

    def logs(self, *, follow: bool = False) -> Iterator[bytes]:
        """The terminal's scrollback in pieces; with `follow`, also further output until the session ends."""
        return iter_logs(self._client.home, self.branch, follow=follow)

    def checkpoint(  # noqa: PLR0913  # each is an option of one request
        self,
        name: str | None = None,
        *,
        message: str = "",
        tier: WantedTier = "auto",
        force: bool = False,
        park: bool = False,
        attach: Mapping[str, str] = {},
        anew: bool = False,
    ) -> "CheckpointFacts":
        """Capture the session under the name `name`; None: the branch's name and the next number, such as `main-3`. The
        session continues.

        `tier`: raise CannotCapture if this tier cannot be reached. `force`: move the name if a checkpoint has it
        already; otherwise that is a StateConflict. `park`: end the session afterwards; raises CannotCapture if its
        processes cannot be kept, unless `tier` is `respawn` or `files`. `attach`: absolute paths of files or folders
        of this machine that are attached to the capture, by kind (model, cache, trace or another word). `anew`: take a
        capture even if nothing has changed since the last one, which otherwise gets the name.
        `Client.history.prove` tests whether it can be restored.
        """
        from waypoint.model.facts import CheckpointFacts

        named = None if name is None else parse_name(name)
        body: dict[str, object] = {"name": named, "message": message, "tier": tier}
        body |= {"force": force, "park": park, **({"attach": dict(attach)} if attach else {})}
        body |= {"anew": True} if anew else {}
        return parse(CheckpointFacts, self._ask_once("checkpoint", body))

    def point(self, label: str = "", *, conversation: str | None = None) -> "PointMadeFacts":
        """Make a point to which `restore` can go back: capture the session, unless its last capture has it as it is.

        `label`: the prompt or command that comes next. `conversation`: the path on this machine of the file in which an
        agent keeps its conversation.
        """
        from waypoint.client.rewinding import describe
        from waypoint.model.facts import PointMadeFacts

        told = describe(os.path.abspath(conversation)) if conversation is not None else None
        body: dict[str, object] = {"label": label, "conversation": told}
        return parse(PointMadeFacts, self._ask_once("points", body))

    def adopt(self, *argv: str) -> SessionFacts:
        """Start a program, such as a command-line agent, in the foreground of the session's shell; its output is the
        terminal's. Start the session with `auto`, so that points are made at prompts. Raises StateConflict if the shell
        is busy.
        """
        answer = self._ask_once("adopt", {"argv": list(argv)})
        return parse(SessionFacts, field_of(answer, "session"))

    def points(self, limit: int | None = None) -> "list[PointFacts]":
        """The points and named checkpoints to which the branch can go back, the newest first."""
        from waypoint.model.facts import PointFacts

        query = f"?limit={limit}" if limit is not None else ""
        return parse_list(PointFacts, ask(self._client.home, "GET", f"{self._path()}/points{query}"), "points")

    def restore(
        self,
        name: str,
        *,
        only: Literal["files", "shell"] | None = None,
        lose_processes: bool = False,
        attach_at: Mapping[str, str] = {},
        tier: WantedTier = "auto",
    ) -> SessionFacts:
        """Go back to the capture `name`, in place of the session if there is one.

        The replaced session is captured first, with its processes unless `lose_processes`; raises CannotCapture if they
        cannot be kept. Attached terminals stay attached. `attach_at`: paths in the new session at which attached layers
        of the capture are placed, by kind. `tier`: raise CannotCapture if this tier cannot be had; `auto`: the best
        that works here; `degraded` of the answer says if that is less than the capture has.
        """
        body: dict[str, object] = {"name": parse_name(name), "only": only, "lose_processes": lose_processes}
        body |= _asked(tier, attach_at)
        answer = self._ask_once("restore", body)
        self._known = parse(SessionFacts, field_of(answer, "session"))
        self._begun = self._known.id if self._begun is not None else None
        return self._known

    @property
    def files(self) -> "Files":
        """The files of the session."""
        from waypoint.client.files import Files

        return Files(self._client.home, self.branch, self._user)

    def diff(self, *, paths: Sequence[str] = (), patch: bool = False) -> "list[ChangeFacts]":
        """What the session has changed of the machine, as in History.diff."""
        return self._client.history.diff(self.branch, paths=paths, patch=patch)

    def stop(self, *, discard: bool = False, checkpoint: str | None = None, keep_programs: bool = False) -> StopFacts:
        """End the session and keep its files as the branch's tip, or delete them. `checkpoint`: first make a checkpoint
        of this name, with the processes, which becomes the tip. `keep_programs`: keep the processes, too, or what can
        be kept of them (`tier` of the answer); the next start continues them.
        """
        body: dict[str, object] = {"discard": discard, "checkpoint": checkpoint}
        body |= {"keep_programs": True} if keep_programs else {}  # a daemon of an earlier version does not know it
        return parse(StopFacts, self._ask_once("stop", body))

    def _path(self) -> str:
        return f"/v1/sessions/{quote_branch(self.branch)}"

    def _ask_once(self, verb: str, body: dict[str, object]) -> object:
        return ask(self._client.home, "POST", f"{self._path()}/{verb}", body, may_repeat=False)

    def _carry(
        self,
        verb: str,
        request: dict[str, object],
        on_output: Callable[[memoryview], None],
        on_errors: Callable[[memoryview], None],
        stdin: bytes | None,
    ) -> dict[str, object]:
        with readable_fd(stdin) as input_fd:
            command = Command(self._client.home, self.branch, verb, {**request, "user": self._user})
            return command.wait(on_output, on_errors, input_fd)


def _asked(tier: WantedTier, attach_at: Mapping[str, str]) -> dict[str, object]:
    """The fields of a restore or fork that are sent only if they differ from their defaults."""
    asked: dict[str, object] = {"tier": tier} if tier != "auto" else {}
    return asked | ({"attach_at": dict(attach_at)} if attach_at else {})


def _sink(on_output: OnOutput | None, output: bytearray) -> Callable[[memoryview], None]:
    if on_output is None:
        return output.extend

    def pass_on(view: memoryview) -> None:
        on_output(bytes(view))

    return pass_on


@contextlib.contextmanager
def readable_fd(content: bytes | None) -> Iterator[int]:
    """A descriptor to read `content` from; -1 for None."""
    if content is None:
        yield -1
        return
    fd = os.memfd_create("waypoint-stdin", os.MFD_CLOEXEC)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
