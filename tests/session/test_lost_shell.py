"""A shell that no longer serves commands is killed and replaced by a new one with the state of its last prompt."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.session.stage import Client, Stage
from tests.waiting import PATIENCE_S
from waypoint.linux.tasks import procfs
from waypoint.model.requests import ExecRequest

STATE = "mine='a b'; f() { echo \"f $1\"; }; alias l=ls; cd /usr; (exit 3)"
SHOW_STATE = 'echo "$mine $(f 1) $PWD $(alias l)"'
STUBBORN = "trap '' INT TERM; mine=lost; echo some output; while :; do :; done"
TAKES_HOLD_S = 1.0  # of a timeout: its signals would end STUBBORN if they came before the `trap`


@pytest.fixture(params=["bash", "zsh"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, request.param, stack)


async def execute(stage: Stage, text: str, **fields: object) -> tuple[dict[str, object], bytes]:
    client = Client()
    request = ExecRequest(text=text, **fields)  # type: ignore[arg-type]  # the fields' types are the tests' own business
    return await stage.daemon.line.execute(request, client, client), bytes(client.output_bytes)


async def check_state(stage: Stage) -> None:
    quote = "'" if stage.shell == "bash" else ""
    shown = f"a b f 1 /usr {'alias ' if quote else ''}l={quote}ls{quote}\n"
    assert (await stage.exec(SHOW_STATE)) == (0, shown.encode(), "command", False, "")


async def test_a_loop_that_no_signal_ends_is_ended_with_its_shell(either: Stage) -> None:
    await either.open()
    await either.exec("sleep 1000 & echo $! >job")
    await either.exec(STATE)
    lost = either.daemon.line.watch.shell
    end, output = await execute(either, STUBBORN, timeout_s=TAKES_HOLD_S)
    assert output == b"some output\n"
    assert (end["exit"], end["signal"], end["new_shell"], end["state_lost"]) == (124, "KILL", True, False)
    assert [condition["code"] for condition in end["degraded"]] == ["shell-renewed"]  # type: ignore[attr-defined]
    await check_state(either)
    assert either.daemon.line.watch.shell != lost
    assert procfs.command_line(int((either.home / "job").read_text())) == ["sleep", "1000"]
    assert b"\n1\n" in b"\n" + (await either.exec("stty -a </dev/tty | grep -c ' icanon .* echo '")).output


HOLD = "hold() { [[ ! -e held ]] || { n=$((n + 1)); read -r _ <gate; }; }; "
HELD = ": >held; mine=kept; sleep 1000"


async def test_a_shell_on_its_way_to_the_prompt_is_not_interrupted(bash: Stage) -> None:
    """PROMPT_COMMAND takes longer than the signals of a timeout."""
    await bash.open(HOLD + "PROMPT_COMMAND=hold")
    os.mkfifo(bash.home / "gate")
    shell = bash.daemon.line.watch.shell
    end, _ = await execute(bash, HELD, timeout_s=0.5)
    (bash.home / "held").unlink()
    assert (end["exit"], end["new_shell"], end["degraded"]) == (124, False, [])
    assert "; the shell has not reached its prompt yet" in str(end["said"])
    with open(bash.home / "gate", "r+b", buffering=0) as gate:
        gate.write(b"go on\n")
        assert await bash.exec("echo $mine $n") == (0, b"kept 1\n", "command", False, "")
    assert bash.daemon.line.watch.shell == shell


async def test_the_next_command_reports_a_shell_that_was_replaced_after_the_report(
    bash: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waypoint.terminal.exec.ending._ACTING_S", 1.0)
    await bash.open(HOLD + "PROMPT_COMMAND='[[ ! -e held ]] || trap \"\" INT; hold'")
    os.mkfifo(bash.home / "gate")
    end, _ = await execute(bash, HELD, timeout_s=0.5)
    assert (end["exit"], end["degraded"]) == (124, [])
    (bash.home / "held").unlink()
    end, output = await execute(bash, "echo fine", wait_prompt_s=PATIENCE_S)
    assert (end["exit"], output) == (0, b"fine\n")
    assert [condition["code"] for condition in end["degraded"]] == ["shell-renewed"]  # type: ignore[attr-defined]
    assert (await execute(bash, "echo fine"))[0]["degraded"] == []


async def test_a_shell_without_hooks_is_replaced_before_the_next_command_runs(either: Stage) -> None:
    await either.open()
    await either.exec(STATE)
    remove = {"bash": "unset -f __wp_arm", "zsh": "unfunction __wp_arm"}[either.shell]
    assert (await either.exec(remove)).exit == 0
    end, output = await execute(either, "echo ran; echo $mine")
    assert (end["exit"], output, end["new_shell"]) == (0, b"ran\na b\n", True)
    await check_state(either)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_the_next_daemon_completes_the_replacement(
    bash: Stage, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon dies right before it kills the shell, or before the new shell has got its state."""
    await bash.open()
    await bash.exec(STATE)
    reached = asyncio.Event()

    async def wait_for_death(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        if moment == "before":
            patch.setattr("waypoint.terminal.exec.lost_shell.kill", wait_for_death)
        else:
            bash.daemon.line.renew = wait_for_death  # type: ignore[assignment]
        client = Client()
        running = asyncio.create_task(bash.exec(STUBBORN, client, timeout_s=TAKES_HOLD_S))
        await reached.wait()
        bash.daemon.die()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    await bash.next_daemon()
    again = await bash.resume(client.exec_id, 0)
    assert (again.exit, again.output, bash.new_shell) == (124, b"some output\n", True)
    await check_state(bash)
