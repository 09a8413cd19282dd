"""What a command line does to the shell stays, as if it had been typed; what we do to the shell does not show."""

import pytest

from tests.session.stage import Stage

PERSISTS = [
    ("cd /usr", "pwd", "/usr"),
    ("x='a b'", 'echo "$x"', "a b"),
    ("export Y=1", "sh -c 'echo $Y'", "1"),
    ("declare -i n=5; n=n+2", "echo $n", "7"),
    ("f() { echo called $1; }", "f me", "called me"),
    ("alias hey='echo from alias'", "hey", "from alias"),
    ("set -- one two 'th ree'", 'echo $# "$3"', "3 th ree"),
    ("set -o noclobber", "echo $-", None),
    ("umask 027", "umask", "027"),
    ("ulimit -n 100", "ulimit -n", "100"),
    ("trap 'echo bye' USR1; kill -USR1 $$", "trap", "trap -- 'echo bye' "),
    ("exec 5>fd5; echo into >&5", "echo more >&5; cat fd5", "into\nmore"),
    ("sleep 1000 &", "jobs; kill %sleep; wait", "sleep 1000"),
    ("set -o noglob", "echo *", "*"),
    ("unset HOME; HOME=/tmp", "echo ~", "/tmp"),
]


@pytest.mark.parametrize(("first", "then", "output"), PERSISTS, ids=[case[0] for case in PERSISTS])
async def test_the_shells_state_persists(stage: Stage, first: str, then: str, output: str | None) -> None:
    await stage.open()
    assert (await stage.exec(first)).exit == 0
    ran = await stage.exec(then)
    assert ran.exit == 0
    if output is not None:
        assert output in ran.output.decode()


async def test_the_status_before_is_seen_by_the_command_and_its_own_by_the_next_line(stage: Stage) -> None:
    await stage.open()
    await stage.exec("(exit 5)")
    assert (await stage.exec("echo $?")).output == b"5\n"
    await stage.exec("(exit 6)")
    mark = len(stage.printed())
    await stage.type(b"echo typed=$?\r")
    await stage.wait_printed(b"typed=6", mark)
    await stage.type(b"(exit 7)\r")
    assert (await stage.exec("echo $?")).output == b"7\n"


async def test_arrays_and_locals_behave_as_at_top_level(bash: Stage) -> None:
    await bash.open()
    await bash.exec("declare -A map=([k]=v); declare list=(1 2 3); readonly fixed=1")
    ran = await bash.exec('echo ${map[k]} ${#list[@]} $fixed "${FUNCNAME[*]}"; local z=1')
    assert ran.output.startswith(b"v 3 1 \n")
    assert b"can only be used in a function" in ran.output


async def test_return_fails_as_at_top_level(bash: Stage) -> None:
    await bash.open()
    ran = await bash.exec("return 3; echo after")
    assert b"can only `return' from a function or sourced script" in ran.output
    assert (await bash.exec("echo ok")).output == b"ok\n"


async def test_the_history_holds_what_was_typed_and_nothing_of_ours(stage: Stage) -> None:
    await stage.open()
    await stage.type(b"echo typed-one\r")
    await stage.wait_printed(b"typed-one\r\n")
    await stage.exec("echo not typed")
    await stage.type(b"echo typed-two\r")
    await stage.wait_printed(b"typed-two\r\n")
    ran = await stage.exec("fc -l 1 2>/dev/null || history")
    lines = [line.split(maxsplit=1)[1] for line in ran.output.decode().splitlines()]
    assert [line.strip() for line in lines] == ["echo typed-one", "echo typed-two"]


@pytest.mark.parametrize("setting", ["", "HISTCONTROL=ignoredups", "HISTCONTROL=", "readonly HISTCONTROL=erasedups"])
async def test_the_users_history_setting_is_theirs_again(bash: Stage, setting: str) -> None:
    await bash.open(setting)
    await bash.type(b"echo typed-one\r")
    await bash.wait_printed(b"typed-one\r\n")
    ran = await bash.exec("echo ${HISTCONTROL-unset}; history")
    first, *lines = ran.output.decode().splitlines()
    assert first == (setting.partition("=")[2] if setting else "unset")
    assert [line.split(maxsplit=1)[1] for line in lines] == ["echo typed-one"]


async def test_the_trace_of_a_command_is_the_commands_alone(stage: Stage) -> None:
    await stage.open()
    await stage.exec("set -x")
    ran = await stage.exec("echo traced")
    assert b"__wp" not in ran.output
    assert ran.output.splitlines()[-1] == b"traced"
    ran = await stage.exec("echo $-; set +x")
    assert b"x" in ran.output.splitlines()[-2]
    assert (await stage.exec("echo quiet")).output == b"quiet\n"


async def test_nounset_and_errtrace_do_not_trip_over_us(stage: Stage) -> None:
    await stage.open()
    await stage.exec("set -u")
    ran = await stage.exec("echo before; echo $no_such_variable; echo after")
    assert ran.output.startswith(b"before\n")
    assert b"after" not in ran.output
    assert ran.exit == 1
    assert (await stage.exec("set +u; echo fine")).output == b"fine\n"


async def test_errexit_ends_the_shell_for_the_commands_failure_only(stage: Stage) -> None:
    await stage.open()
    await stage.exec("set -e")
    assert (await stage.exec("true; if false; then :; fi; false || echo caught")).output == b"caught\n"
    ran = await stage.exec("false; echo not reached")
    assert (ran.exit, ran.output) == (1, b"")
    assert (ran.ended, stage.new_shell) == ((False, True) if stage.shell == "bash" else (True, False))


async def test_a_trap_on_errors_sees_the_commands_errors(bash: Stage) -> None:
    await bash.open()
    await bash.exec("trap 'echo ERR' ERR")
    assert (await bash.exec("true")).output == b""
    assert b"ERR\n" in (await bash.exec("false")).output


async def test_a_debug_trap_does_not_stop_anything(bash: Stage) -> None:
    await bash.open()
    await bash.exec("trap 'count=$((count+1))' DEBUG")
    assert (await bash.exec("echo one; echo two")).output == b"one\ntwo\n"


async def test_options_that_change_the_language_do_not_reach_us(zsh: Stage) -> None:
    await zsh.open("setopt ksh_arrays sh_word_split ksh_glob glob_subst no_equals csh_junkie_quotes ignore_braces")
    assert (await zsh.exec("echo one")).output == b"one\n"
    assert (await zsh.exec("echo $?")).output == b"0\n"


async def test_posix_mode_does_not_stop_anything(bash: Stage) -> None:
    await bash.open("set -o posix")
    assert (await bash.exec("echo one; false")).exit == 1
    assert (await bash.exec("if")).exit == 2
    assert (await bash.exec("echo $?")).output == b"2\n"


async def test_aliases_of_the_words_we_use_do_not_reach_us(stage: Stage) -> None:
    words = ("builtin", "read", "printf", "local", "eval", "case", "unset", "return", "until", "shift", "trap")
    await stage.open("\n".join(f"alias {word}='echo hijacked'" for word in words))
    assert (await stage.exec("echo fine")).output == b"fine\n"


async def test_builtins_that_print_may_be_switched_off(stage: Stage) -> None:
    """`builtin printf` fails then, too; only what runs the program prints still."""
    off = {"bash": "enable -n printf echo", "zsh": "disable printf print echo"}[stage.shell]
    await stage.open()
    assert (await stage.exec(f"{off}; x=kept")).exit == 0
    assert (await stage.exec("printf '%s\\n' $x; (exit 3)")).output == b"kept\n"


async def test_functions_named_like_builtins_do_not_reach_us(bash: Stage) -> None:
    await bash.open("read() { echo hijacked; }\nprintf() { echo hijacked; }\nexport() { echo hijacked; }\n[() { :; }")
    assert (await bash.exec("echo fine")).output == b"fine\n"


async def test_a_redirected_shell_still_answers(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("exec >all; echo to the file")
    assert (ran.exit, ran.output) == (0, b"")
    assert (await stage.exec("grep -a file all >&2")).output == b"to the file\n"
    await stage.exec("exec >/dev/tty 2>err")
    assert (await stage.exec("echo back; echo lost >&2")).output == b"back\n"


async def test_pipestatus_of_the_line_before_is_lost(bash: Stage) -> None:
    """Known and documented: it cannot be assigned."""
    await bash.open()
    assert (await bash.exec("false | true; echo ${PIPESTATUS[@]}")).output == b"1 0\n"
    await bash.exec("false | true")
    assert (await bash.exec("echo ${PIPESTATUS[@]}")).output != b"1 0\n"


async def test_the_command_may_take_the_prompts_away(bash: Stage) -> None:
    await bash.open()
    assert (await bash.exec("PROMPT_COMMAND=; unset PS0 PS1 PS2; unset PROMPT_COMMAND")).exit == 0
    assert (await bash.exec("echo again")).output == b"again\n"
    assert (await bash.exec("PROMPT_COMMAND='echo theirs'")).output == b""
    assert (await bash.exec("echo again")).output == b"again\n"


async def test_the_users_own_prompt_commands_go_on(bash: Stage) -> None:
    await bash.open("PROMPT_COMMAND='count=$((count+1)); seen=$?'")
    before = int((await bash.exec("echo $count")).output)
    await bash.exec("(exit 9)")
    count, seen = (await bash.exec("echo $count $seen")).output.split()
    assert int(count) == before + 2
    assert seen == b"0"


async def test_a_timeout_of_read_does_not_end_a_command(bash: Stage) -> None:
    await bash.open()
    await bash.exec("TMOUT=1")
    assert (await bash.exec("unset TMOUT; echo here")).output == b"here\n"
