"""Values of a shell are restored exactly, whatever their bytes, and never run as commands."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.session.stage import Stage
from tests.session.test_shell_state import stable_part, state_of
from waypoint.terminal.shell.dump import ShellDump
from waypoint.terminal.shell.putting_back import put_back

# Characters with a meaning for the shell or for the parser of its state, and bytes that are not UTF-8.
_PIECES = (
    *(bytes([char]) for char in b"'\"\\\n\r\t $`!~*[](){};=&|<>#%\x01\x7f\x1b\xff\xc3a0-"),
    *("é".encode(), b"$(touch ran)", b"`touch ran`", b"$'", b"\\'", b"declare -- x=", b"\\n"),
    *(b"a[$(touch ran)]", b"\xc3\x83"),
    *(byte + b"'; touch ran; : " + byte for byte in (b"\x1c", b"\x9c", b"\xa7", b"\xdc")),
    *(b"\xdcC-\\", b"\x9cC-x", "\u0085\u200b\u2028ç§Ü".encode()),
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
            runner.run(_save_and_restore(stage, values))

        check()
        runner.run(_end(stage))
    assert not list(stage.home.rglob("ran"))


_ALL = [
    *(
        before + bytes([byte]) + after
        for byte in range(1, 256)
        for before, after in ((b"", b"'"), (b"\xe2\x82", b"C-\\"))
    ),
    *(bytes([first, byte]) for first in (0x1C, 0x9C, 0xA7, 0xDC) for byte in range(1, 256)),
]


async def test_every_byte_is_restored_in_variables_traps_aliases_and_functions(stage: Stage) -> None:
    await stage.open()
    whole = b"".join(value + b"\0" for value in _ALL)
    (stage.home / "values").write_bytes(whole)
    plain = b"".join(bytes([byte]) for byte in range(1, 256) if byte not in b"'\n")
    (stage.home / "functions").write_bytes(b"quoting() { printf %s '" + plain + b"'; }\n")
    for locale in ("C.UTF-8", "C"):
        assert (await stage.exec(f"LC_ALL={locale}; . ./functions" + _SET)).exit == 0
        assert (await stage.exec('trap -- "${list[*]}" USR1; alias -- hey="${list[*]}"')).exit == 0
        if stage.shell == "zsh":
            assert (await stage.exec("typeset -T TIED tied $'\\x1c'; tied=($list); typeset -aU kept=($list)")).exit == 0
        before = await state_of(stage)
        assert before.unclear == set()
        assert before.args == _ALL
        assert (await stage.exec(_OTHER + "; trap - USR1; unset -f quoting; unset TIED kept")).exit == 0
        await _put_back_exactly(stage, before)
        await stage.exec("printf '%s\\0' \"${list[@]}\" >list; quoting >ran-by-function; alias hey >alias")
        assert (stage.home / "list").read_bytes() == whole
        assert (stage.home / "ran-by-function").read_bytes() == plain
        await stage.exec('for v in "${list[@]}"; do printf "%s\\0" "${map["x$v"]}"; done >map; unset v')
        assert (stage.home / "map").read_bytes() == whole
    assert not (stage.home / "ran").exists()


async def test_values_with_a_nul_do_not_change_the_rest_of_the_state(stage: Stage) -> None:
    await stage.open()
    if stage.shell == "bash":
        return  # has no such values
    forged = "m\\0\\0\\000022\\0d\\0\\0\\0/\\0t\\0\\0\\0touch ran\\0e\\0\\0\\0\\0"
    await stage.exec(
        f"nul=$'x\\0{forged}'; set -- \"$nul\" '\\0'; alias hey=\"$nul\"; eval \"f() {{ print -rn '$nul'; }}\""
    )
    await stage.exec('dirstack=("/$nul"); function "g$nul" { : }')
    before = await state_of(stage)
    assert before.args is not None
    assert before.args[0].count(b"\0") == 17
    assert before.args[1] == b"\\0"
    await stage.exec("unset nul; set --; unalias hey; unfunction f; dirs -c")
    assert await put_back(stage.daemon.line, "main", await state_of(stage), before, "it") == []
    after = await state_of(stage)
    for part in ("variables", "args", "aliases", "functions", "traps"):
        assert stable_part(after, part) == stable_part(before, part), part
    assert (await stage.exec("f")).output == before.args[0]
    assert not (stage.home / "ran").exists()


async def _put_back_exactly(stage: Stage, before: ShellDump) -> None:
    """Restore the state `before` in the shell, and check that the shell then has this state."""
    assert await put_back(stage.daemon.line, "main", await state_of(stage), before, "it") == []
    after = await state_of(stage)
    for dump in (before, after):
        del dump.variables[b"map"]  # its order is not fixed
    for part in ShellDump.__slots__:
        assert stable_part(after, part) == stable_part(before, part), part


async def _save_and_restore(stage: Stage, values: list[bytes]) -> None:
    whole = b"".join(value + b"\0" for value in values)
    (stage.home / "values").write_bytes(whole)
    ran = await stage.exec(_SET)
    assert ran.exit == 0, ran
    before = await state_of(stage)
    assert before.args == values
    await stage.exec(_OTHER)
    await _put_back_exactly(stage, before)
    await stage.exec('for v in "${list[@]}"; do printf "%s\\0" "${map["x$v"]}"; done >map; unset v')
    assert (stage.home / "map").read_bytes() == whole
    await stage.exec("printf '%s\\0' \"$@\" >args; printf '%s\\0' \"${list[@]}\" >list; printf '%s' \"$given\" >given")
    assert (stage.home / "args").read_bytes() == (stage.home / "list").read_bytes() == whole
    assert (stage.home / "given").read_bytes() == values[0]


async def _end(stage: Stage) -> None:
    stage.daemon.die()
