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

from tests.collecting import collecting
from tests.session.stage import Stage

pytestmark = pytest.mark.soak(part="timing")

NAMES = ("go", "bell", "branch", "nonce", "req", "last.0", "last.1", "hist.0", "hist.1", "names", "state", "exit.new")

BOUND_S = 5.0  # of commands that take some milliseconds, so that one which hangs is told by the assert behind it


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
async def test_no_replaced_file_keeps_the_shell_from_its_commands(stage: Stage, kind: str) -> None:
    await stage.open()
    with collecting() as row:
        for name in NAMES:
            kept = stage.run / f"kept.{name}"
            with contextlib.suppress(FileNotFoundError):
                (stage.run / name).rename(kept)
            put(stage.run / name, kind)
            with row(name):
                for text in ("f() { :; }", "echo hi"):
                    ran = await stage.exec(text, timeout_s=1, wait_prompt_s=2)
                assert ran == (0, b"hi\n", "command", False, "")
            put_away(stage.run / name)
            with contextlib.suppress(FileNotFoundError):
                kept.rename(stage.run / name)
    for name in ("last.0", "last.1"):
        put(stage.run / name, kind)
    for _ in range(2):
        prompts = stage.daemon.line.watch.prompts
        await stage.exec("(exit 7)", timeout_s=BOUND_S)
        await stage.daemon.line.wait_idle()
        assert stage.daemon.line.watch.prompts > prompts
        assert (await stage.exec("echo $?", timeout_s=BOUND_S)).output == b"7\n"


async def test_a_command_may_replace_the_fifo_of_the_shell(stage: Stage) -> None:
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


async def test_a_command_that_does_not_begin_is_withdrawn_in_time(stage: Stage) -> None:
    file = await hang(stage)
    began = time.monotonic()
    ran = await stage.exec("echo hi", timeout_s=0.1, wait_prompt_s=0.1)
    assert 2 <= time.monotonic() - began < 4  # 2 s is what every command gets to begin
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert ran.said == "the session's shell did not begin the command within 2 s; it was taken back"
    file.unlink()
    assert (await stage.exec("echo there", timeout_s=BOUND_S)).output == b"there\n"


async def test_a_command_that_does_not_begin_can_be_cancelled(stage: Stage) -> None:
    file = await hang(stage)
    for signal in ("INT", "TERM", "HUP", "QUIT", "KILL"):
        asked, client = await stage.begin("echo hi")
        client.send("k", signal.encode())
        ran = await asyncio.wait_for(asked, 2)
        assert (ran.exit, ran.by) == (125, "waypoint"), signal
        assert "did not begin the command before it was called off; it was taken back" in ran.said
    file.unlink()
    assert (await stage.exec("echo there", timeout_s=BOUND_S)).output == b"there\n"


async def test_an_exec_returns_although_the_end_of_the_session_is_delayed(bash: Stage) -> None:
    await bash.open()
    os.mkfifo(bash.run / "exit.new")
    ran = await asyncio.wait_for(bash.exec("exit 3"), 8)  # 5 s are pid 1's, to leave the status
    assert (ran.exit, ran.by, ran.said) == (125, "waypoint", "the session's shell has ended")
