"""Claude Code in a session, without an account: its pause, and forks whose screen answers to a key."""

import select
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.agents.cli_agents import PROGRAMS, Agent
from tests.bench.frame import Figure, at_most, seconds_of
from tests.bench.ground import RESTORED, Ground, take
from tests.bench.inside import Spinner
from tests.places import make_temp_root
from tests.waiting import PATIENCE_S
from waypoint.client.attach import Attachment
from waypoint.client.sdk import Session

ROWS, COLS = 40, 100
NO_MODEL = 9  # the port of a model that does not exist: nothing is sent to it
PROMPT = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}".encode()
KEY = "§".encode()  # is nowhere on the screen
MAX_RUNS = 10


def figures(ground: Ground) -> Iterator[Figure]:
    if not (PROGRAMS / ".bin/claude").exists():
        print("forks: no figures of Claude Code, which ./dev setup installs if there is npm", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="claude-", dir=make_temp_root()) as folder:
        agent = Agent("claude", Path(folder) / "home", NO_MODEL)
        agent.make()
        session, spinner = _start(ground, agent)
        capture = session.checkpoint("of-claude", tier="live").capture

        def fork_ms() -> float:
            return 1000 * seconds_of(lambda: _answer(ground.client.fork("of-claude", "claude-new")[0]))

        yield Figure(
            "pause, Claude Code at its prompt",
            "ms",
            lambda: spinner.gap_ms(lambda: take(session)),
            ground.pause_ms,  # bare CRIU cannot dump Claude Code: it does not find the files that it watches
            "pause of a small session",
            at_most(60, "ms"),
            max_runs=MAX_RUNS,
        )
        yield Figure(
            "fork of Claude Code, its screen has answered",
            "ms",
            fork_ms,
            lambda: ground.raw.restore_ms("claude", capture),
            RESTORED,
            at_most(90, "ms"),
            lambda: ground.discard("claude-new"),
            MAX_RUNS,
        )
        ground.discard("claude-new", "claude")


def _start(ground: Ground, agent: Agent) -> tuple[Session, Spinner]:
    """Start a session in which Claude Code waits at its prompt, and the spinner."""
    session = ground.client.start("claude", user="root", env={"TERM": "xterm-256color"})
    spinner = Spinner(ground.home, session)
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in agent.env.items())
    session.exec(f"export {exports}; cd {shlex.quote(str(agent.work))}")
    terminal = session.attach(ROWS, COLS)
    terminal.send(b"claude\r")
    _see(terminal, PROMPT)
    terminal.close()
    _answer(session)
    return session, spinner


def _answer(session: Session) -> None:
    """Attach, press a key, wait until the screen shows it, and take it back."""
    terminal = session.attach(ROWS, COLS)
    terminal.send(KEY)
    _see(terminal, KEY)
    terminal.send(b"\x7f")
    terminal.flush()
    terminal.close()


def _see(terminal: Attachment, sign: bytes) -> None:
    seen, ready = b"", select.poll()
    ready.register(terminal.fileno(), select.POLLIN)
    while sign not in seen:
        terminal.flush()
        if not ready.poll(1000 * PATIENCE_S):
            raise RuntimeError(f"the terminal shows {seen[-500:]!r}, and not {sign.decode()}")
        seen += terminal.receive() or b""
