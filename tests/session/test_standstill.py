"""During a pause (the session is frozen for a capture), no step of the capture waits for the event loop, and the event
loop does nothing with the session's terminal.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shellwrap.ring import Ring
from tests.records.conftest import names as names
from tests.records.test_names_store import row_of
from tests.session.stage import Client, Stage
from waypoint.model.paths import COMMAND_FILE, RING_FILE
from waypoint.model.records import HOST_IDS
from waypoint.session.live.subject import LiveSubject
from waypoint.terminal.exec import ending

BLOCKED_S = 1.0


def subject_of(stage: Stage) -> LiveSubject:
    """Wrap the stage's shell in the LiveSubject that a capture works on."""
    lists: dict[str, Any] = {name: [] for name in ("overlays", "outside", "proc_readonly", "masked")}
    facts: dict[str, Any] = {"cgroup": "", "init_pid": stage.pid, "env": {}, "nonce": "", "seccomp": "default"}
    record = SimpleNamespace(row=row_of("main"), ids=HOST_IDS, **lists, **facts)
    daemon = stage.daemon
    live: Any = SimpleNamespace(
        record=record, branch="main", terminal=daemon.terminal, shell=daemon.line, processes=stage.processes
    )
    return LiveSubject(live, stage.folder)


def ends_without_the_loop(work: Callable[[], object]) -> bool:
    """Block the event loop, run `work` in a thread, and return whether it ends. Raise the error of `work`, if any."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BLOCKED_S)
    if failed:
        raise failed[0]
    return not thread.is_alive()


async def test_no_step_during_a_pause_waits_for_the_event_loop(stage: Stage, tmp_path: Path) -> None:
    await stage.open()
    subject = subject_of(stage)
    copy = tmp_path / "copy"
    copy.mkdir()
    assert await asyncio.to_thread(subject.ask_shell) is not None
    os.write(stage.master, b"typed ahead")
    await asyncio.to_thread(subject.hold)
    for step in (subject.processes, subject.leader, subject.drain, subject.shell_holds, subject.take_unread):
        assert ends_without_the_loop(step), step
    assert ends_without_the_loop(lambda: subject.save_terminal(copy))
    assert ends_without_the_loop(subject.put_unread_back)
    assert {path.name for path in copy.iterdir()} >= {RING_FILE, COMMAND_FILE}
    await asyncio.to_thread(subject.go_on)
    assert not ends_without_the_loop(subject.ask_shell)  # outside of a pause, this step waits for the loop


async def test_output_during_a_pause_is_copied_and_its_marks_are_reported_after_it(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.open()
    subject = subject_of(stage)
    terminal = stage.daemon.terminal
    copy = tmp_path / "copy"
    copy.mkdir()
    await asyncio.to_thread(subject.hold)
    prompts = stage.daemon.line.watch.prompts
    before = terminal.ring.end
    os.write(stage.master, b"echo print''ed\r")  # typed by a person; the daemon types nothing during a pause
    await asyncio.to_thread(_wait_readable, stage.master)
    while not ring_has(terminal.ring, before, b"printed\r\n"):
        await asyncio.to_thread(subject.drain)
    saved = await asyncio.to_thread(subject.save_terminal, copy)
    assert saved.end == terminal.ring.end + len(terminal.reader.spill)
    copied = Ring.open(str(copy / RING_FILE))
    assert b"printed\r\n" in copied.copy(copied.start, copied.end)
    copied.close()
    assert stage.daemon.line.watch.prompts == prompts, "a mark was reported during the pause"
    await asyncio.to_thread(subject.go_on)
    await stage.daemon.line.watch.wait_prompt(BLOCKED_S, after=prompts + 1)


async def test_a_state_is_outdated_after_a_new_prompt(stage: Stage) -> None:
    await stage.open()
    subject = subject_of(stage)
    terminal = stage.daemon.terminal
    assert await asyncio.to_thread(subject.ask_shell) is not None
    await asyncio.to_thread(subject.hold)
    await asyncio.to_thread(subject.drain)
    assert subject.shell_holds()
    before = terminal.ring.end
    os.write(stage.master, b"changed=yes; echo do''ne\r")
    while not ring_has(terminal.ring, before, b"done\r\n") or subject.shell_holds():
        await asyncio.to_thread(subject.drain)
    await asyncio.to_thread(subject.go_on)


async def test_no_command_begins_during_a_pause(bash: Stage) -> None:
    await bash.open()
    subject = subject_of(bash)
    await asyncio.to_thread(subject.hold)
    state = (bash.folder / COMMAND_FILE).read_bytes()
    ran = asyncio.ensure_future(bash.exec("echo begun"))
    done, _ = await asyncio.wait([ran], timeout=0.2)
    assert not done
    assert (bash.folder / COMMAND_FILE).read_bytes() == state
    await asyncio.to_thread(subject.go_on)
    assert (await ran).output == b"begun\n"


# The command reports SIGINT in a file, which the test can see while nobody reads the terminal.
TRAP = "echo >$HOME/interrupted; echo cleaned up; exit 3"
NOTES_INTERRUPT = f"sh -c 'trap \"{TRAP}\" INT; echo ready; while :; do :; done'"


async def test_a_signal_of_the_client_waits_for_the_end_of_a_pause(stage: Stage) -> None:
    await stage.open()
    subject, client = subject_of(stage), Client()
    ran = asyncio.ensure_future(stage.exec(NOTES_INTERRUPT, client))
    await client.wait_output(b"ready\n")
    await asyncio.to_thread(subject.hold)
    client.send("k", b"INT")
    done, _ = await asyncio.wait([ran], timeout=0.3)
    assert not done
    assert not (stage.home / "interrupted").exists()
    await asyncio.to_thread(subject.go_on)
    assert b"cleaned up\n" in (await ran).output


@pytest.mark.soak(part="timing")
async def test_a_timeout_during_a_pause_is_enforced_after_the_pause(stage: Stage) -> None:
    await stage.open()
    subject, client = subject_of(stage), Client()
    ran = asyncio.ensure_future(stage.exec(NOTES_INTERRUPT, client, timeout_s=1.5))
    await client.wait_output(b"ready\n")
    await asyncio.to_thread(subject.hold)
    done, _ = await asyncio.wait([ran], timeout=2.5)  # longer than the timeout and its grace
    assert not done
    assert not (stage.home / "interrupted").exists()
    await asyncio.to_thread(subject.go_on)
    ended = await ran
    assert (ended.exit, ended.by) == (124, "waypoint")
    assert b"cleaned up\n" in ended.output


async def test_a_pause_does_not_shorten_the_grace_after_a_timeout() -> None:
    moving, sent = asyncio.Event(), asyncio.Queue[signal.Signals]()
    moving.set()
    enforcing = asyncio.ensure_future(ending.stop_command(moving, sent.put))
    (first, first_s), (second, _) = ending.STOPS[:2]
    assert await sent.get() == first
    moving.clear()
    done, _ = await asyncio.wait([enforcing], timeout=ending.MARGIN_S + 0.5)
    assert not done
    assert sent.empty()
    moving.set()
    again = asyncio.get_running_loop().time()
    assert await sent.get() == second
    assert asyncio.get_running_loop().time() - again > 0.5 * first_s
    enforcing.cancel()


def ring_has(ring: Ring, position: int, text: bytes) -> bool:
    return text in ring.copy(max(position, ring.start), ring.end)


def _wait_readable(fd: int) -> None:
    import select

    select.select([fd], [], [], BLOCKED_S)
