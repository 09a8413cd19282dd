"""Each exec is answered in time even if the shell hangs in its hooks because files of its run folder were replaced.

tests/acceptance/test_replaced_run_folder.py replaces every file and the folder.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.session.stage import Stage

pytestmark = pytest.mark.soak(part="timing")


BOUND_S = 5.0  # the timeout of commands that need some milliseconds, so that a hanging command fails an assertion


async def test_a_command_may_replace_the_fifo_of_the_shell(stage: Stage) -> None:
    await stage.open()
    folder = stage.run
    assert (await stage.exec(f"rm {folder}/go; mkfifo {folder}/go", timeout_s=BOUND_S)).exit == 0
    assert (await stage.exec("echo hi", timeout_s=BOUND_S)).output == b"hi\n"


async def hang(stage: Stage) -> Path:
    """Make the shell's hooks hang at the begin of each command. Return the file that ends this when it is removed."""
    await stage.open()
    file = stage.folder / "hang"
    os.mkfifo(file)
    name = "__wp_take" if stage.shell == "bash" else "__wp_check"  # in zsh, after the shell has accepted the command
    text = (
        f"functions[was]=$functions[{name}]"
        if stage.shell == "zsh"
        else f'eval "was() $(declare -f {name} | tail -n +2)"'
    )
    defined = f'{text}; {name}() {{ [ ! -p {file} ] || : <{file}; was "$@"; }}'
    file.rename(stage.folder / "later")
    assert (await stage.exec(defined, timeout_s=BOUND_S)).exit == 0
    (stage.folder / "later").rename(file)
    return file


async def test_a_command_that_does_not_begin_is_withdrawn_in_time(stage: Stage) -> None:
    file = await hang(stage)
    began = time.monotonic()
    ran = await stage.exec("echo hi", timeout_s=0.1, wait_prompt_s=0.1)
    assert 2 <= time.monotonic() - began < 4  # every command has 2 s to begin
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert ran.said == "the session's shell did not begin the command within 2 s; the command will not run"
    file.unlink()
    assert (await stage.exec("echo there", timeout_s=BOUND_S)).output == b"there\n"


async def test_a_command_that_does_not_begin_can_be_cancelled(stage: Stage) -> None:
    file = await hang(stage)
    for signal in ("INT", "TERM", "HUP", "QUIT", "KILL"):
        asked, client = await stage.begin("echo hi")
        client.send("k", signal.encode())
        ran = await asyncio.wait_for(asked, 2)
        assert (ran.exit, ran.by) == (125, "waypoint"), signal
        assert "did not begin the command before the client cancelled it; the command will not run" in ran.said
    file.unlink()
    assert (await stage.exec("echo there", timeout_s=BOUND_S)).output == b"there\n"


async def test_an_exec_returns_although_the_end_of_the_session_is_delayed(bash: Stage) -> None:
    await bash.open()
    os.mkfifo(bash.run / "exit.new")
    ran = await asyncio.wait_for(bash.exec("exit 3"), 8)  # pid 1 has 5 s to write the status
    assert (ran.exit, ran.by, ran.said) == (125, "waypoint", "the session's shell has ended")
