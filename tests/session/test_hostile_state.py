"""What a session's processes have put in the place of their shell's state is no command, and costs nobody else time."""

import asyncio
import os
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.session.stage import NO_SPARE, Stage
from waypoint.terminal.hooks.run_folder import RunFolder, apart
from waypoint.terminal.shell import script
from waypoint.terminal.shell.dump import MOST_ENTRIES, ShellKind, parse
from waypoint.terminal.shell.putting_back import put_back


def state(limits: bytes) -> bytes:
    return b"d\0\0\0/\0m\0\0\x00022\0l\0\0\0" + limits + b"\0e\0\0\0\0"


@pytest.mark.parametrize(
    ("kind", "line"),
    [("bash", b"open files                          (-n) %s"), ("zsh", b"-n: file descriptors                %s")],
)
def test_a_limit_is_a_number_and_its_line_is_short(kind: ShellKind, line: bytes) -> None:
    for good in (b"0", b"20000", b"unlimited"):
        assert parse(state(b"first\n" + line % good + b"\n"), kind).limits == {"n": good}
    for bad in (b"$(touch${IFS}ran)", b";x", b"1;x", b"-1", b"1 x"):
        assert parse(state(line % bad), kind).limits == {}
    assert parse(state(line.replace(b" %s", b" " * 10_000 + b"%s") % b"1"), kind).limits == {}


LINES = b"".join(b"declare -- a%d=1\n" % number for number in range(MOST_ENTRIES + 1))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (b"v\0\0\0" + LINES + b"\0", "variables"),
        (b"l\0\0\0" + b"\n" * len(LINES) + b"\0", "variables"),
        (b"t\0\0\0" + b"' a\n" * len(LINES) + b"\0", "variables"),
        (b"g\0\0\0a\0" * (MOST_ENTRIES + 1), "variables"),
        (b"a\0x\0\0y\0" * (MOST_ENTRIES + 1), "variables"),
        (b"o\0\0a:" + b"a:" * len(LINES) + b"\0b\0", "options"),
    ],
    ids=["variables", "limits", "traps", "arguments", "aliases", "options"],
)
def test_a_state_of_more_than_any_shell_has_is_refused(records: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"it has more .*{said}"):
        parse(state(b"")[:-5] + records + b"e\0\0\0\0", "bash")


def test_a_state_with_as_many_entries_as_are_allowed_is_whole() -> None:
    most = state(b"")[:-5] + b"v\0\0\0" + LINES[: LINES.rindex(b"declare")] + b"\0e\0\0\0\0"
    assert len(parse(most, "bash").variables) == MOST_ENTRIES


@pytest.mark.parametrize("attributes", [b" -a", b" -i 10", b" -" + b"a" * 1000])
def test_a_line_of_attributes_takes_no_memory(attributes: bytes) -> None:
    line = b"typeset" + attributes * ((1 << 20) // len(attributes))
    tracemalloc.start()
    try:
        assert parse(state(b"")[:-5] + b"v\0\0\0" + line + b"\0e\0\0\0\0", "zsh").variables == {}
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


async def test_a_thread_works_on_a_folder_of_which_the_session_has_closed_its_descriptor(tmp_path: Path) -> None:
    folder, closed, main = RunFolder(os.open(tmp_path, os.O_RDONLY), NO_SPARE), threading.Event(), threading.get_ident()

    def write(own: RunFolder) -> int:
        closed.wait()
        own.write("back", b"text")
        return threading.get_ident()

    work = asyncio.ensure_future(apart(folder, write))
    await asyncio.sleep(0)
    os.close(folder.fd)
    closed.set()
    assert await work != main
    assert (tmp_path / "back").read_bytes() == b"text"


async def test_neither_composing_nor_writing_what_is_put_back_keeps_the_event_loop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.open()
    now = parse(state(b""), "zsh" if stage.shell == "zsh" else "bash")
    compose, write, threads = script.compose, RunFolder.write, dict[str, int]()

    def composing(*args: Any) -> script.Script:
        threads["compose"] = threading.get_ident()
        return compose(*args)

    def writing(folder: RunFolder, name: str, data: bytes) -> None:
        threads[name] = threading.get_ident()
        write(folder, name, data)

    monkeypatch.setattr(script, "compose", composing)
    monkeypatch.setattr(RunFolder, "write", writing)
    await put_back(stage.daemon.line, "main", now, replace(now, history=b"echo before\n"), "it")
    assert threads.keys() >= {"compose", "back", "history"}
    assert threading.get_ident() not in {threads["compose"], threads["back"], threads["history"]}
