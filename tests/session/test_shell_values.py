"""Values of a shell are restored exactly, whatever their bytes, and never run as commands."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.session.stage import Stage
from tests.session.test_shell_state import stable_part, state_of
from waypoint.terminal.shell.dump import ShellDump
from waypoint.terminal.shell.putting_back import put_back

# Known defect: `typeset -p` of zsh 5.9 quotes these bytes wrongly, so such values are not restored, and may be run.
_ZSH_MISQUOTES = b"\x1c\x9c\xa7\xdc"
# Characters with a meaning for the shell or for the parser of its state, and bytes that are not UTF-8.
_PIECES = (
    *(bytes([char]) for char in b"'\"\\\n\r\t $`!~*[](){};=&|<>#%\x01\x7f\x1b\xff\xc3a0-"),
    *("é".encode(), b"$(touch ran)", b"`touch ran`", b"$'", b"\\'", b"declare -- x=", b"\\n"),
    *(b"a[$(touch ran)]", b"\xc3\x83"),
)
_VALUE = st.lists(st.sampled_from(_PIECES), max_size=6).map(b"".join) | st.binary(max_size=12).map(
    lambda data: data.replace(b"\0", b"")
)
_SET = """
list=(); while LC_ALL=C IFS= read -r -d '' v; do list+=("$v"); done <values; unset v
set -- "${list[@]}"; export given="$1"; unset map; typeset -A map; for v in "${list[@]}"; do map["x$v"]=$v; done
alias -- hey="$1"
"""
_OTHER = "list=(other); set -- other; given=other; map=(); unalias hey"


@pytest.mark.soak(part="floods")
def test_any_values_are_restored_exactly_and_never_run(stage: Stage) -> None:
    with asyncio.Runner() as runner:
        runner.run(stage.open())

        @settings(
            max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        @given(st.lists(_VALUE, min_size=1, max_size=12))
        def check(values: list[bytes]) -> None:
            if stage.shell == "zsh":
                values = [value.translate(None, _ZSH_MISQUOTES) for value in values]
            runner.run(_save_and_restore(stage, values))

        check()
        runner.run(_end(stage))
    assert not list(stage.home.rglob("ran"))


async def _save_and_restore(stage: Stage, values: list[bytes]) -> None:
    whole = b"".join(value + b"\0" for value in values)
    (stage.home / "values").write_bytes(whole)
    ran = await stage.exec(_SET)
    assert ran.exit == 0, ran
    before = await state_of(stage)
    assert before.args == values
    await stage.exec(_OTHER)
    assert await put_back(stage.daemon.line, "main", await state_of(stage), before, "it") == []
    after = await state_of(stage)
    for dump in (before, after):
        del dump.variables[b"map"]  # its order is not fixed
    for part in ShellDump.__slots__:
        assert stable_part(after, part) == stable_part(before, part), part
    await stage.exec('for v in "${list[@]}"; do printf "%s\\0" "${map["x$v"]}"; done >map; unset v')
    assert (stage.home / "map").read_bytes() == whole
    await stage.exec("printf '%s\\0' \"$@\" >args; printf '%s\\0' \"${list[@]}\" >list; printf '%s' \"$given\" >given")
    assert (stage.home / "args").read_bytes() == (stage.home / "list").read_bytes() == whole
    assert (stage.home / "given").read_bytes() == values[0]


async def _end(stage: Stage) -> None:
    stage.daemon.die()
