"""The shell text that starts a captured program again starts exactly that program. The shell runs none of its words."""

import json
import sys
from pathlib import Path

import pytest

from tests.session.stage import Stage
from tests.session.test_shell_state import at_prompt
from tests.waiting import wait_until
from waypoint.processes.respawn.manifest import Program, Role, StandardStream
from waypoint.terminal.shell import again

TELL = """import json, os, sys
told = {"argv": sys.argv[1:], "env": dict(os.environ), "folder": os.getcwd(), "stdin": sys.stdin.read()}
open(sys.argv[1] + ".new", "w").write(json.dumps(told)); os.rename(sys.argv[1] + ".new", sys.argv[1])
print("out"); print("err", file=sys.stderr)
"""
HOSTILE = ["it's", "$(touch ran)", "`touch ran`", "a\nb; touch ran", "-n", "", "*", "!!", "\udcff", '"', "\\", "~", "&"]


def program(folder: Path, role: Role = "job", **fields: object) -> Program:
    words = [sys.executable, "-c", TELL, str(folder / "told"), *HOSTILE]
    given: dict[str, object] = {
        "role": role,
        "group": 1,
        "argv": [word.encode(errors="surrogateescape") for word in words],
        "folder": str(folder),
        "environ": [b"PATH=/usr/bin:/bin", b"A=it's $(touch ran)\n", b"WAYPOINT_BRANCH=old", b"-x=1", b"none"],
        "streams": [],
        "ports": [],
        "started": 1,
        "below": 0,
    }
    return Program(**{**given, **fields})  # type: ignore[arg-type]  # the tests pass fields of the right types


async def start(stage: Stage, *line: Program) -> None:
    job = again.job(line, "new", 7)
    (stage.run / "back").write_bytes(job.body)
    await stage.exec(job.command, tty=True)


async def test_a_shell_that_traces_shows_no_variable_of_the_program(stage: Stage) -> None:
    await stage.open()
    folder = stage.home / "x"
    folder.mkdir()
    await stage.exec("set -xv")
    environ = [b"PATH=/usr/bin:/bin", b"TOKEN=hunter2"]
    await start(stage, program(folder, environ=environ, streams=[StandardStream(number=0)]))
    wait_until(lambda: (folder / "told").exists(), "the program has run")
    await stage.exec("set +xv; echo so far")
    assert json.loads((folder / "told").read_text())["env"]["TOKEN"] == "hunter2"
    printed = stage.printed()
    assert (b"builtin read" in printed, b"so far" in printed, b"hunter2" in printed) == (True, True, False)


@pytest.mark.parametrize(
    "line", ["less +!touch log", "man -Ptouch ls", "watch touch", "./less log", "vi log", "tail log|tee copy"]
)
def test_only_programs_that_run_no_others_are_started_without_a_question(tmp_path: Path, line: str) -> None:
    def programs(text: str) -> list[Program]:
        return [program(tmp_path, argv=one.encode().split()) for one in text.split("|")]

    assert again.may_run_unasked(programs("tail -f log|less")) is True
    assert again.may_run_unasked(programs(line)) is False


async def test_a_program_is_started_with_its_words_folder_environment_and_files(stage: Stage) -> None:
    await stage.open()
    folder = stage.home / "a 'b"
    folder.mkdir()
    (folder / "in put").write_text("skipped|read")
    (folder / "out").write_text("before\n")
    streams = [
        StandardStream(number=0, path=str(folder / "in put"), offset=8),
        StandardStream(number=1, path=str(folder / "out")),
        StandardStream(number=2, path=str(folder / "out"), append=True),
    ]
    await start(stage, program(folder, streams=streams))
    wait_until(lambda: (folder / "out").read_text().count("\n") == 3, "the program has ended")
    told = json.loads((folder / "told").read_text())
    assert told["argv"][1:] == HOSTILE
    assert (told["folder"], told["stdin"]) == (str(folder), "read")
    environment = {"PATH": "/usr/bin:/bin", "A": "it's $(touch ran)\n", "WAYPOINT_BRANCH": "new"}
    assert {name: told["env"].get(name) for name in environment} == environment
    assert "HOME" not in told["env"]
    assert sorted((folder / "out").read_text().split()) == ["before", "err", "out"]
    await at_prompt(stage)
    assert (await stage.exec('echo $? "$__wp_t"')).output == b"7 \n"
    assert not list(stage.home.rglob("ran"))


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (["sleep", "7"], "sleep 7"),
        (["echo", "it's", "$(x)"], "echo 'it'\\''s' '$(x)'"),
        (["echo", "a\nb"], None),
        (["echo", "!x"], None),
        (["echo", "\x15"], None),
        (["A=$(x)", "ls"], "'A=$(x)' ls"),
        (["PATH=here", "ls"], "'PATH=here' ls"),
    ],
)
def test_only_printable_commands_are_typed_at_the_prompt(tmp_path: Path, argv: list[str], typed: str | None) -> None:
    assert again.offered([program(tmp_path, argv=[word.encode() for word in argv])]) == typed
