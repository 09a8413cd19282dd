"""Testing whether a program survives in copies of its session: the test of a workload profile.

A program gets words one at a time (model/profile_facts.py). The original, two forks and a restore in place must each
know the words from before the capture and their own, and no others.
"""

import contextlib
import functools
import os
import re
import select
import shlex
import time
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.client.attach import Attachment
from waypoint.client.results import RunResult, StartOptions
from waypoint.client.sdk import Client, Session
from waypoint.model.errors import CannotCapture, Failed, HostLacks, StateConflict, UnknownName
from waypoint.model.profile_facts import ProfileFacts, ProgramTest
from waypoint.model.session_facts import ConditionFacts, SessionFacts

ROWS, COLS = 30, 100
PATIENCE_S = 30.0
"""How long a terminal may take to show a text."""
_PLACE = "/tmp/waypoint-test"
# Waits up to $3 seconds until $1 prints the words in $2, in any order. Otherwise prints the output of $1 and fails.
_KNOWS = """
while ((SECONDS < $3)); do
    said=$(eval "$1" 2>&1 | xargs -n1 | sort | xargs)
    [ "$said" != "$2" ] || exit 0
    sleep 0.05
done
echo "it knows ${said:-nothing} in place of $2"; exit 1
"""
_READY = 'while ((SECONDS < 25)); do (eval "$1") >said 2>&1 && exit 0; sleep 0.05; done; cat said; exit 1'
_MISSING = 'for name; do command -v "$name" >/dev/null || echo "$name"; done'
_WITH_PATH = 'PATH="$OF_TEST:$PATH"; unset OF_TEST; '  # before shell text that runs with the PATH of a ProgramRun
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()*+].|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]()*+])")


AGREED = "^the replaced session is kept without its processes"
"""Reported by a restore with `lose_processes`."""


class ProgramFailed(Exception):
    """A program did not do what its test expects."""


class ProgramRun:
    """A session with a program, and the words that the program got there. Use it in `closing`."""

    def __init__(
        self, test: ProgramTest, session: Session, words: tuple[str, ...] = (), *, place: str = _PLACE, path: str = ""
    ) -> None:
        """`place`: the folder in which it runs. `path`: folders of programs, which come before those of the session's
        PATH.
        """
        self.test = test
        self.session = session
        self.words = words
        self._place = place
        self._path = path
        self._shown = ""

    def begin(self) -> None:
        """Start the program and wait until it works."""
        test, place = self.test, self._place
        done = self.session.exec(f"mkdir -p {place} && chmod 777 {place} && cd {place} && KEPT=kept")
        if done.exit == 0 and self._path:
            done = self.session.exec(f"export PATH={shlex.quote(self._path)}:$PATH")
        if done.exit == 0 and test.start:
            done = self.session.exec(test.start)
        if done.exit != 0:
            raise ProgramFailed(f"it did not start: {done.output[-2000:].decode(errors='replace').strip()}")
        if test.typed:
            self.type(f"{test.typed}\r")
        if test.shows:
            self.see(test.shows)
        if test.ready:
            self.must(_READY, test.ready)

    def tell(self, word: str) -> None:
        if self.test.keys:
            self.type(self.test.keys.replace("WORD", word))
        else:
            self.must(self.test.tell, word)
        self.words = (*self.words, word)

    def check_told(self) -> None:
        """Check that the program knows exactly the words that this copy has received, and none of other copies."""
        if self.test.told:
            self.must(_KNOWS, self.test.told, " ".join(sorted(self.words)), str(self.test.patience_s))
        elif self.words:
            self.see(self.words[-1])

    def tell_and_check(self, word: str) -> None:
        """Pass a word, if the program takes any, and check that it knows its words."""
        if self.test.tell or self.test.keys:
            self.tell(word)
            self.check_told()

    def must(self, text: str, *arguments: str) -> RunResult:
        """Run shell text as a separate process in the session. The text must succeed within 30 s."""
        done = run_text(self.session, text, *arguments, cwd=self._place, path=self._path)
        if done.exit != 0:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise ProgramFailed(f"{self.session.branch}: {said or f'exit status {done.exit}'}")
        return done

    def type(self, keys: str) -> None:
        self._terminal.send(keys.encode())
        deadline = time.monotonic() + PATIENCE_S
        while self._terminal.flush():
            self._wait(select.POLLOUT, deadline, "the terminal takes no input")

    def see(self, pattern: str) -> None:
        """Wait until the terminal has shown the expression since this object first read it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._terminal.flush()
            output = self._terminal.receive()
            self._shown += (output or b"").decode(errors="replace")
            shown = _ESCAPES.sub("", self._shown)
            if re.search(pattern, shown, re.MULTILINE):
                return
            if output is None:
                raise ProgramFailed(f"{self.session.branch}: the session has ended: {shown[-500:]!r}")
            if not output:
                self._wait(select.POLLIN, deadline, f"the terminal does not show {pattern!r}: {shown[-500:]!r}")

    def close(self) -> None:
        if "_terminal" in vars(self):
            self._terminal.close()

    def _wait(self, event: int, deadline: float, said: str) -> None:
        poll = select.poll()
        poll.register(self._terminal.fileno(), event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ProgramFailed(f"{self.session.branch}: {said}")

    @functools.cached_property
    def _terminal(self) -> Attachment:
        return self.session.attach(ROWS, COLS)


def run_text(session: Session, text: str, *arguments: str, cwd: str = "/", path: str = "") -> RunResult:
    """Run shell text as a separate process in the session for at most 30 s. `path`: as in ProgramRun."""
    env = {"OF_TEST": path} if path else {}
    text = _WITH_PATH + text if path else text
    return session.run("timeout", "30", "bash", "-c", text, "row", *arguments, cwd=cwd, env=env)


class Step(NamedTuple):
    """A step of a test, whether its result is as expected, and the result in words."""

    step: str
    ok: bool
    said: str


def try_profile(client: Client, profile: ProfileFacts, *, path: str, user: str | None = None) -> Iterator[Step]:
    """Run the test of a profile in throw-away sessions, and yield its steps, up to the first that fails. `path`:
    folders of programs, which come before those of the session's PATH. `user`: of the sessions, None: the caller.
    Raises HostLacks if a program is missing in the session.
    """
    test = profile.test
    assert test is not None
    name = f"test-{profile.name}-{os.urandom(3).hex()}"
    options: StartOptions = {"cwd": "/", "shell": "/bin/bash", "rows": ROWS, "cols": COLS}
    options["env"] = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    if user is not None:
        options["user"] = user
    session = client.start(name, **options)
    step = "start"
    try:
        _check_programs(session, profile, test, path)
        for step, said in _steps(client, test, session, f"of-{name}", path):
            if said is not None:
                yield Step(step, ok=True, said=said)
    except (ProgramFailed, CannotCapture, Failed) as error:
        yield Step(step, ok=False, said=str(error))
    finally:
        _remove(client, name)


def _check_programs(session: Session, profile: ProfileFacts, test: ProgramTest, path: str) -> None:
    needed = test.uses or profile.programs[:1]
    found = run_text(session, _MISSING, *needed, path=path)
    missing = found.stdout.decode(errors="replace").split()
    if not missing:
        return
    ways = {"apt-get install": test.debian, "npm install": test.npm, "pip install": test.pypi}
    next_step = "; ".join(f"{way} {' '.join(packages)}" for way, packages in ways.items() if packages)
    said = f"sessions have no program {missing[0]}"
    raise HostLacks("test the profile", profile.name, said, next_step or "install it, or add its folder to PATH")


def _steps(
    client: Client, test: ProgramTest, session: Session, name: str, path: str
) -> Iterator[tuple[str, str | None]]:
    """Yield each step twice: before it, with None, and after it, with its result."""
    with contextlib.closing(ProgramRun(test, session, tuple(test.knows.split()), path=path)) as original:
        yield "start", None
        original.begin()
        if test.early:
            original.tell_and_check("one")
        yield "start", "it works"
        yield "checkpoint", None
        before = original.words
        taken = session.checkpoint(name)
        reasons = _texts(taken.degraded)
        _check_tier(test, taken.tier, reasons)
        yield "checkpoint", "; ".join([f"tier {taken.tier}, paused {taken.paused_ms:.0f} ms", *reasons])
        yield "original", None
        original.tell_and_check("original")
        yield "original", "it goes on"
    yield "forks", None
    forks = client.fork(name, f"{session.branch}-1", f"{session.branch}-2")
    said = [
        _check_copy(test, fork, fork.facts, (*before, word), path)
        for fork, word in zip(forks, ("first", "second"), strict=True)
    ]
    yield "forks", said[0]
    yield "restore", None
    facts = session.restore(name, lose_processes=test.tier != "live")
    yield "restore", _check_copy(test, session, facts, (*before, "again"), path)


def _check_tier(test: ProgramTest, tier: str, reasons: list[str]) -> None:
    if tier != test.tier:
        raise ProgramFailed("; ".join([f"tier {tier}, and the profile expects {test.tier}", *reasons]))
    _check_expected(test, reasons)


def _check_expected(test: ProgramTest, reasons: list[str]) -> None:
    known = (*test.degraded, *([AGREED] if test.tier != "live" else []))
    unexpected = [one for one in reasons if not any(re.search(pattern, one) for pattern in known)]
    if unexpected:
        raise ProgramFailed(f"the profile does not expect: {'; '.join(unexpected)}")


def _check_copy(test: ProgramTest, session: Session, facts: SessionFacts, words: tuple[str, ...], path: str) -> str:
    """Check that a copy knows the words from before, then its own, the last of `words`. Return the result in words.

    Programs that were started again have lost their words; the shell has not.
    """
    _check_expected(test, _texts(facts.degraded))
    if test.tier != "live":
        if session.exec('[ "$KEPT" = kept ]').exit != 0:
            raise ProgramFailed(f"{session.branch}: the shell has lost a variable")
        return "; ".join(fates(facts)) or "its program is gone"
    *before, own = words
    with contextlib.closing(ProgramRun(test, session, tuple(before), path=path)) as copy:
        if test.early and before and not (test.keys and test.told):  # others show their words after a further word only
            copy.check_told()
        copy.tell_and_check(own)
    return "they know their words, and not those of other copies" if words else "they go on"


def fates(facts: SessionFacts) -> Iterator[str]:
    """Yield what happened to each program that was not kept."""
    for fate, lines in (("respawned", facts.respawned), ("offered", facts.offered), ("lost", _texts(facts.lost))):
        yield from (f"{fate} {line}" for line in lines or [])


def _texts(conditions: list[ConditionFacts] | None) -> list[str]:
    """The sentences of the conditions, without those that most sessions have."""
    return [one["text"] for one in conditions or [] if not one.get("usual")]


def _remove(client: Client, name: str) -> None:
    for branch in (name, f"{name}-1", f"{name}-2"):
        with contextlib.suppress(UnknownName, StateConflict):  # the test has ended before it was there
            client.session(branch).stop(discard=True)
    for one in (f"of-{name}", name, f"{name}-1", f"{name}-2"):
        with contextlib.suppress(UnknownName):
            client.history.remove(one, now=True)
