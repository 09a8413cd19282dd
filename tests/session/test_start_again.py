"""The text that starts a program again starts exactly that program: nothing of its words is run by the shell."""

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
        "exe": sys.executable,
        "folder": str(folder),
        "environ": [b"PATH=/usr/bin:/bin", b"A=it's $(touch ran)\n", b"WAYPOINT_BRANCH=old", b"-x=1", b"none"],
        "streams": [],
        "ports": [],
        "started": 1,
        "below": 0,
    }
    return Program(**{**given, **fields})  # type: ignore[arg-type]  # the fields are the test's own business


async def test_it_is_the_program_with_its_words_folder_environment_and_files(stage: Stage) -> None:
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
    await stage.exec(again.job_text([program(folder, streams=streams)], "new", 7), tty=True)
    wait_until(lambda: (folder / "out").read_text().count("\n") == 3, "it has ended")
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
def test_only_what_can_be_typed_is_put_on_the_line(tmp_path: Path, argv: list[str], typed: str | None) -> None:
    assert again.offered([program(tmp_path, argv=[word.encode() for word in argv])]) == typed
