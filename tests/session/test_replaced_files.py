"""Whoever may write to the folder that shell and daemon share may put anything in its files' places: the shell does not
wait for it, and whoever asked for something gets an answer in time.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.session.stage import Client, Stage

NAMES = ("go", "bell", "branch", "nonce", "req", "last.0", "last.1", "hist.0", "hist.1", "names", "state", "exit.new")

# Of commands that take some milliseconds, so that one which hangs is told by the assert behind it.
BOUND_S = 20.0


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "within").touch()


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": make_folder,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "huge": make_huge,
    "socket": make_socket,
}


def put_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def put(path: Path, kind: str) -> None:
    put_away(path)
    with contextlib.chdir(path.parent):
        KINDS[kind](Path(path.name))


@pytest.mark.parametrize("kind", KINDS)
async def test_no_file_of_the_folder_keeps_the_shell_from_its_commands(stage: Stage, kind: str) -> None:
    await stage.open()
    for name in NAMES:
        kept = stage.run / f"kept.{name}"
        with contextlib.suppress(FileNotFoundError):
            (stage.run / name).rename(kept)
        put(stage.run / name, kind)
        for text in ("f() { :; }", "echo hi"):
            ran = await stage.exec(text, timeout_s=BOUND_S, wait_prompt_s=BOUND_S)
        assert (name, ran) == (name, (0, b"hi\n", "command", False, ""))
        put_away(stage.run / name)
        with contextlib.suppress(FileNotFoundError):
            kept.rename(stage.run / name)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_shell_whose_state_has_no_file_draws_its_prompt_and_keeps_the_status(stage: Stage, kind: str) -> None:
    await stage.open()
    for name in ("last.0", "last.1"):
        put(stage.run / name, kind)
    for _ in range(2):
        prompts = stage.daemon.line.watch.prompts
        await stage.exec("(exit 7)", timeout_s=BOUND_S)
        await stage.daemon.line.wait_idle()
        assert stage.daemon.line.watch.prompts > prompts
        assert (await stage.exec("echo $?", timeout_s=BOUND_S)).output == b"7\n"


async def test_a_command_that_replaces_what_the_shell_waits_in_keeps_it_from_no_further_command(stage: Stage) -> None:
    await stage.open()
    folder = stage.run
    assert (await stage.exec(f"rm {folder}/go; mkfifo {folder}/go", timeout_s=BOUND_S)).exit == 0
    assert (await stage.exec("echo hi", timeout_s=BOUND_S)).output == b"hi\n"


async def hang(stage: Stage) -> Path:
    """Have the shell's hooks hang, wherever a command begins, as long as the file is there that is returned."""
    await stage.open()
    file = stage.folder / "hang"
    os.mkfifo(file)
    name = "__wp_take" if stage.shell == "bash" else "__wp_check"  # in zsh once the shell has accepted the command
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


async def test_a_command_that_does_not_begin_is_taken_back_in_its_time(stage: Stage) -> None:
    file = await hang(stage)
    began = time.monotonic()
    ran = await stage.exec("echo hi", timeout_s=0.1, wait_prompt_s=0.1)
    assert 2 <= time.monotonic() - began < BOUND_S  # 2 s is what every command gets to begin
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert ran.said == "the session's shell did not begin the command within 2 s; it was taken back"
    file.unlink()
    assert (await stage.exec("echo there", timeout_s=BOUND_S)).output == b"there\n"


@pytest.mark.parametrize("signal", ["INT", "TERM", "HUP", "QUIT", "KILL"])
async def test_a_command_that_does_not_begin_can_be_called_off(stage: Stage, signal: str) -> None:
    file = await hang(stage)
    client = Client()
    asked = asyncio.ensure_future(stage.exec("echo hi", client))
    while not client.notes:
        await asyncio.sleep(0)
    client.send("k", signal.encode())
    ran = await asyncio.wait_for(asked, BOUND_S)
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert ran.said == "the session's shell did not begin the command before it was called off; it was taken back"
    file.unlink()
    assert (await stage.exec("echo there", timeout_s=BOUND_S)).output == b"there\n"


async def test_a_session_whose_end_is_held_up_ends_its_command(bash: Stage) -> None:
    await bash.open()
    os.mkfifo(bash.run / "exit.new")
    ran = await asyncio.wait_for(bash.exec("exit 3"), BOUND_S)  # 5 s are pid 1's, to leave the status
    assert (ran.exit, ran.by, ran.said) == (125, "waypoint", "the session's shell has ended")
