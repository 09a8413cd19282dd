"""What a command defines, disables or makes readonly does not break the hooks: the shell serves the next command."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.collecting import collecting
from tests.session.stage import Stage
from tests.waiting import PATIENCE_S

FUNCTIONS = "[() { false; }; test() { false; }; printf() { :; }; read() { :; }; eval() { :; }; trap() { :; }"
STOP = "kill -STOP $$"
COMMON = [
    "set -k",
    FUNCTIONS,
    "builtin() { :; }",
    "enable -n printf echo 2>/dev/null || disable printf echo",
    "set -f; set -u; set -o pipefail",
    "IFS=abc",
    'bind -r "\\C-m" 2>/dev/null || bindkey -r "^M"',
    "trap '' INT TERM QUIT HUP",
]
BOTH = [
    "set -k",
    FUNCTIONS,
    "return() { :; }; unset() { :; }; local() { :; }; set() { :; }; export() { :; }",
    "builtin() { :; }",
    "alias read=false eval=false trap=false builtin=false local=false return=false",
    "readonly r=1 l=1 v=1 p=1 b=1 o=1 f=1 j=1 w=1; readonly PAGER=less",
    "set -f; set -u; set -o pipefail; set -C; set -a",
    "IFS=abc",
    "readonly IFS",
    "PS1=; POSIXLY_CORRECT=1; unset POSIXLY_CORRECT",
    "trap '' INT TERM QUIT HUP",
    "trap - DEBUG",
    "stty raw -isig intr undef igncr </dev/tty",
    "ulimit -f 0",
    "mkdir gone; cd gone; rmdir ../gone",
    "unset PATH HOME TERM; LC_ALL=C",
    STOP,
    "umask 777",
]
BASH = [
    "enable -n builtin printf echo read local eval trap set unset bind export history mapfile shopt declare",
    "declare() { :; }; shopt() { :; }; exec() { :; }; history() { :; }; bind() { :; }",
    'bind -r "\\C-m"; bind -r "\\C-j"',
    "bind -x '\"\\C-m\": echo no'",
    "for m in emacs vi-insert vi-command; do bind -m $m -r '\\e[7717~'; done",
    "set -T; set -E; set -P; set -t; set -o posix; set +o posix",
    "set -o vi",
    "shopt -s failglob nocasematch globstar xpg_echo localvar_inherit; shopt -u promptvars sourcepath",
    "readonly HISTCONTROL; readonly PS0 PS1 PS2 PROMPT_COMMAND",
    "PROMPT_COMMAND= PS1= PS0= PS2=",
    "history -c; set +o history",
    "set -n",
]
ZSH = [
    "disable builtin printf echo read eval trap set unset zle setopt emulate print",
    "emulate() { :; }; setopt() { :; }; zle() { :; }; print() { :; }; sched() { :; }",
    "bindkey -r '^M'; bindkey -r '\\e[7717~'",
    "zle -D __wp_arm; bindkey -v",
    "setopt ksharrays shwordsplit warncreateglobal sunkeyboardhack ignorebraces localtraps",
    "precmd_functions=(); zshaddhistory_functions=(); zshexit_functions=()",
    "unset options aliases",
    "emulate ksh",
    "setopt noexec",
]


@pytest.fixture(params=["bash", "zsh"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, request.param, stack)


async def test_common_commands_do_not_break_the_hooks(either: Stage) -> None:
    await run_all(either, COMMON)


@pytest.mark.soak(part="matrix")
async def test_no_command_breaks_the_hooks(either: Stage) -> None:
    await run_all(either, [*BOTH, *(BASH if either.shell == "bash" else ZSH)])


async def run_all(either: Stage, commands: list[str]) -> None:
    """Run all commands in one shell, one after the other, so that each meets what those before have done."""
    await either.open()
    shell = either.daemon.line.watch.shell
    assert shell is not None
    with collecting() as row:
        for text in commands:
            with row(text):
                await either.exec(text, timeout_s=0.2 if text == STOP else PATIENCE_S)
                after = await either.exec("echo next", timeout_s=PATIENCE_S)
                assert (after.exit, after.output, after.said, either.new_shell) == (0, b"next\n", "", False)
                now = either.daemon.line.watch.shell
                assert now is not None
                assert now.pid == shell.pid
