"""The prompt shows the branch, in bash and in zsh; the user's own value of PS1 does not change."""

from tests.session.stage import Stage

SHOW_PS1 = "printf '%s|' \"$PS1\""


async def on_branch(stage: Stage, rc: str = "", name: str = "fix-1") -> None:
    stage.run.mkdir(mode=0o700)
    (stage.run / "branch").write_text(f"{name}\n")
    await stage.open(rc)


async def next_prompt(stage: Stage, shown: bytes, typed: bytes = b"") -> None:
    """Type a line, and wait until the terminal prints `shown` after it."""
    before = stage.daemon.terminal.ring.end
    await stage.type(typed + b"\r")
    await stage.wait_printed(shown, before)


async def test_the_prompt_begins_with_the_branch_and_a_command_finds_the_users_own_prompt(stage: Stage) -> None:
    await on_branch(stage)
    await stage.wait_printed(b"[fix-1] P> ")
    for _ in range(2):
        assert (await stage.exec(SHOW_PS1)).output == b"P> |"
    before = stage.daemon.terminal.ring.end
    assert (await stage.exec("PS1='own '; " + SHOW_PS1)).output == b"own |"
    await stage.wait_printed(b"[fix-1] own ", before)


async def test_a_copy_shows_the_branch_of_the_copy(stage: Stage) -> None:
    await on_branch(stage)
    (stage.run / "branch").write_text("copy/two\n")
    await next_prompt(stage, b"[copy/two] P> ")
    assert b"fix-1" not in stage.printed().rpartition(b"P> ")[0].rpartition(b"P> ")[2]


async def test_the_branch_in_the_prompt_can_be_turned_off(stage: Stage) -> None:
    await on_branch(stage, "WAYPOINT_PROMPT=off")
    assert b"[fix-1]" not in stage.printed()
    await next_prompt(stage, b"[fix-1] P> ", b"unset WAYPOINT_PROMPT")
    await stage.exec("export WAYPOINT_PROMPT=off")
    before = stage.daemon.terminal.ring.end
    assert (await stage.exec(SHOW_PS1)).output == b"P> |"
    await stage.wait_printed(b"P> ", before)
    assert b"[fix-1]" not in stage.printed(before)


async def test_changed_and_read_only_prompts_are_left_alone(stage: Stage) -> None:
    await on_branch(stage)
    old = 'old=$PS1; PS1="(venv) $PS1"'
    await next_prompt(stage, b"(venv) ", old.encode())
    await next_prompt(stage, b"[fix-1] P> ", b"PS1=$old")
    assert (await stage.exec(SHOW_PS1)).output == b"P> |"
    await stage.exec("readonly PS1")
    assert (await stage.exec(SHOW_PS1)).exit == 0
    assert (await stage.exec("echo on")).output == b"on\n"


async def test_the_branch_is_shown_in_a_prompt_that_is_set_before_each_command(stage: Stage) -> None:
    hook = "precmd_functions+=(renew)" if stage.shell == "zsh" else "PROMPT_COMMAND=renew"
    await on_branch(stage, f'n=0; renew() {{ n=$((n+1)); PS1="$n> "; }}; {hook}')
    await next_prompt(stage, b"[fix-1] 2> ")
    await next_prompt(stage, b"[fix-1] 3> ")


async def test_an_empty_prompt_stays_empty_also_with_set_u(stage: Stage) -> None:
    await on_branch(stage, "set -u; PS1=")
    assert b"[fix-1]" not in stage.printed()
    assert (await stage.exec("unset PS1; echo one")).output == b"one\n"
    assert (await stage.exec("echo two")).output == b"two\n"
