"""The state that a shell writes can be restored into another shell. No text in the state is run as a command."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from shellwrap.marks import KEY
from tests.session.stage import Stage
from waypoint.capture.layers.shell import STATE_FILE, history_in, last_prompt, read_state
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks import asking
from waypoint.terminal.shell.asked import ask_state
from waypoint.terminal.shell.dump import ShellDump, parse
from waypoint.terminal.shell.putting_back import put_back
from waypoint.upper.layout import upper_of

BASH_STATE = r"""
plain=word; empty=; export exported='two  words'; declare -x never_set; declare -a no_elements; declare -A no_keys
quotes=\''"$`\!'; lines=$'one\n\ttwo\n'; bytes=$'\xff\xfe\x01\xc3'; run='$(touch ran)`touch ran`'; umlaut=ü
declare -a list=([0]='a b' [7]='$(touch ran)' [8]=$'\n'); declare -a none=()
declare -A map=([key]=value ['$(touch ran)']='`touch ran`' ['a]b']=1 [' ']=2 ['@']=3 [$'\n']=4 ['"']=5)
declare -i number=5; trick='a[$(touch ran)]'; declare -i trick; declare -u upper; lower='stays lower'; declare -u lower
declare -n ref=plain; declare -n loose; declare -n sub='list[$(touch ran)]'; declare -ax both=(1 2)
was_list=scalar; declare -r fixed=there
greet() { local n=$1; cat <<END
hello "$n"
}
END
}
export -f greet; a-b() { [[ x == @(x|y) ]] && echo 'it'"'"'s'; }
declare() { builtin declare "$@"; }; trap() { builtin trap "$@"; }
builtin trap 'echo it'"'"'s
two; touch ran' USR1; builtin trap '' USR2; builtin trap 'count=$((count+1))' DEBUG; builtin trap 'touch ran' EXIT
umask 027; ulimit -Sn 100; set -u -o noglob -o noclobber; shopt -s nullglob globstar
shopt -u sourcepath
mkdir -p 'x y/z'; cd 'x y'; cd z; pushd /usr >/dev/null; pushd / >/dev/null; cd /var
alias ll='ls -l' hey=$'echo "it\'s"\necho $(touch ran)' declare='touch ran' builtin='touch ran'
\set -- one $'two\n' '$(touch ran)' ''; \history -s $'echo $(touch ran)\necho two'; (\exit 7)
"""
BASH_OTHER = r"""
\builtin unalias -a
builtin trap - DEBUG EXIT USR1 USR2; builtin trap 'touch ran' ERR; cd /; dirs -c; set +u; set -o posix; set +o noglob
unset plain map list never_set lower upper; unset -n ref; unset -f greet a-b declare trap; number=7; declare -i empty=3
was_list=(1 2); new=1; declare -A plain=([x]=1); declare -n bytes=new; new_function() { :; }
cd() { touch ran; }; alias new='x' cd='touch ran'; umask 0; ulimit -Sn 90; shopt -u nullglob
export quotes; set -- three; history -c; history -s other; set -e
"""
ZSH_STATE = r"""
plain=word; empty=; export exported='two  words'; typeset -x never_set
quotes=\''"$`\!'; lines=$'one\n\ttwo\n'; bytes=$'\xff\xfe\x01\xc3'; run='$(touch ran)`touch ran`'; umlaut=ü; nul=$'a\0b'
list=('a b' '$(touch ran)' $'\n' ''); typeset -a none; typeset -A map
map=(key value '$(touch ran)' '`touch ran`' 'a]b' 1 ' ' 2 '@' 3 $'\n' 4 '"' 5)
typeset -i number=5; typeset -i 16 hex=255; typeset -F real=1.5; typeset -u upper=abc; typeset -Z 5 padded=7
typeset -T TIED tied; tied=(a 'b c'); typeset -U path; path+=(/nowhere); was_list=scalar; typeset -r fixed=there
greet() { local n=$1; cat <<END
hello "$n"
}
END
}
a-b() { [[ x == (x|y) ]] && echo 'it'"'"'s'; }; autoload -U compinit
alias ll='ls -l' hey=$'echo "it\'s"\necho $(touch ran)'; alias -g GG='| touch ran'; alias -s txt='cat'
trap 'echo it'"'"'s
two; touch ran' USR1; trap '' USR2; TRAPHUP() { touch ran }
print -s $'echo $(touch ran)\necho two'; set -- one $'two\n' '$(touch ran)' ''
umask 027; ulimit -Sn 100; setopt no_unset no_glob no_clobber rc_quotes ksh_arrays
mkdir -p 'x y/z'; cd 'x y'; cd z; pushd /usr >/dev/null; pushd / >/dev/null; cd /var; chpwd() { touch ran }
(exit 7)
"""
ZSH_OTHER = r"""
trap - USR1 USR2; unfunction TRAPHUP chpwd greet a-b; cd /
setopt unset glob err_exit csh_junkie_quotes; unsetopt ksh_arrays
unset plain map list never_set upper; unalias -m '*'; number=7; typeset -i empty; empty=3
typeset -F hex; tied=(z); PATH=/bin:/usr/bin
unset was_list; was_list=(1 2); new=1; typeset -A plain; new_function() { : }
alias new='x' cd='touch ran'; alias -g ZZ=zz
umask 0; ulimit -Sn 90; typeset -x quotes; set -- three; print -s other; dirs -c; cd() { touch ran }
"""


async def at_prompt(stage: Stage) -> CommandLine:
    await stage.daemon.line.wait_idle()
    await stage.daemon.line.watch.wait_prompt(5)
    return stage.daemon.line


async def state_of(stage: Stage) -> ShellDump:
    await at_prompt(stage)
    asked = await ask_state(stage.daemon.line)
    assert asked is not None, stage.printed()
    data = (stage.run / STATE_FILE).read_bytes()
    history = history_in(data)
    assert history is not None
    assert asked.layer.size_bytes == len(data)
    assert asked.layer.kind == stage.shell
    return parse(data, asked.layer.kind, (stage.run / history).read_bytes())


def stable_part(dump: ShellDump, part: str) -> object:
    """Return a part of the dump, without variables that change by themselves."""
    if part != "variables":
        return getattr(dump, part)
    own = (
        rb"__wp.*|READLINE_.*|BASH.*|EPOCH.*|ERRNO|TTYIDLE|_|POSIXLY_CORRECT|RANDOM|SECONDS|SRANDOM|LINENO|HISTCMD|"
        rb"COMP_WORDBREAKS|PIPESTATUS|GROUPS|FUNCNAME|HISTNO|count"
    )
    return {name: entry for name, entry in dump.variables.items() if not re.fullmatch(own, name)}


@pytest.mark.parametrize("other", [False, True], ids=["new shell", "changed shell"])
async def test_a_state_is_restored_exactly(stage: Stage, other: bool) -> None:  # noqa: FBT001 - a parameter of the test
    await stage.open()
    bash = stage.shell == "bash"
    new = await state_of(stage)
    assert (await stage.exec(BASH_STATE if bash else ZSH_STATE)).exit == 7
    before = await state_of(stage)
    assert {b"plain", b"map", b"bytes"} <= set(before.variables)
    if other:
        await stage.exec(BASH_OTHER if bash else ZSH_OTHER)
        stays = await put_back(stage.daemon.line, "main", await state_of(stage), before, "it")
        assert stays == []
    else:
        stays = await put_back(stage.daemon.line, "main", before, new, "it")
        assert [line.split(" stays")[0] for line in stays] == ["the variable fixed"]
        stays = await put_back(stage.daemon.line, "main", await state_of(stage), before, "it")
        assert stays == []
    after = await state_of(stage)
    for part in ShellDump.__slots__:
        assert stable_part(after, part) == stable_part(before, part), part
    assert not list(stage.home.rglob("ran"))
    assert not (stage.run / "back").exists()


def at_last_prompt(stage: Stage) -> ShellDump:
    """Return the state that a capture would take if the shell were busy."""
    tree = stage.folder / "tree"
    folder = Path(upper_of(str(tree))) / "run/waypoint"
    shutil.copytree(stage.run, folder, ignore=shutil.ignore_patterns("go", "in.*"))
    layer = last_prompt(str(tree))
    assert layer is not None, sorted(os.listdir(folder))
    assert (layer.kind, layer.moment) == (stage.shell, "prompt")
    _, data, history = read_state(str(tree), layer)
    shutil.rmtree(tree)
    return parse(data, layer.kind, history)


async def test_the_state_written_at_a_prompt_equals_the_state_given_on_request(stage: Stage) -> None:
    await stage.open()
    await stage.exec(BASH_STATE if stage.shell == "bash" else ZSH_STATE)
    asked = await state_of(stage)
    written = at_last_prompt(stage)
    assert written.status == 7
    if stage.shell == "zsh":  # the request runs in a widget and a function, with their own variables and "$@"
        asked.variables = {name: entry for name, entry in asked.variables.items() if name in written.variables}
        del asked.variables[b"argv"], written.variables[b"argv"]
    assert {b"plain", b"map", b"bytes", b"TERM"} <= written.variables.keys()
    for part in ShellDump.__slots__:
        assert stable_part(written, part) == stable_part(asked, part), part
    assert not list(stage.home.rglob("ran"))


async def test_the_state_of_a_busy_shell_is_that_of_its_last_prompt(stage: Stage) -> None:
    await stage.open()
    await stage.exec("kept=before; set -e; (exit 3) || :")
    running, client = await stage.begin("kept=after; echo begun; read -r x", b"begun", stdin=True)
    state = at_last_prompt(stage)
    assert b"before" in state.variables[b"kept"].text
    assert {"errexit"} <= state.options
    client.send("i", b"go on\n")
    await running
    await at_prompt(stage)
    assert b"after" in at_last_prompt(stage).variables[b"kept"].text


async def test_writing_the_state_at_each_prompt_changes_nothing_in_the_shell(stage: Stage) -> None:
    await stage.open()
    await stage.exec("trap 'count=$((count+1))' DEBUG; set -u -e; set -o noclobber; IFS=01")
    for text, shown in (
        (b"(exit 7) || echo st$?\r", b"st7\r\n"),
        (b"! true\r", b""),
        (b"echo al''ive \"$?\"\r", b"alive 1\r\n"),
    ):
        await at_prompt(stage)
        prompts = stage.daemon.line.watch.prompts
        await stage.type(text)
        await stage.daemon.line.watch.wait_prompt(5, after=prompts + 1)
        assert shown in stage.printed()
    assert b"ount" in (at_last_prompt(stage).traps[b"DEBUG"] or b"")
    await stage.exec("trap - DEBUG; kept=yes")
    await at_prompt(stage)
    assert b"yes" in at_last_prompt(stage).variables[b"kept"].text


async def test_reading_and_restoring_the_state_changes_neither_history_nor_the_typed_line(stage: Stage) -> None:
    await stage.open()
    await stage.type(b"echo 'before'\r")
    await stage.wait_printed(b"before\r\n")
    before = await state_of(stage)
    await stage.exec("x=1")
    await put_back(stage.daemon.line, "main", await state_of(stage), before, "it")
    await stage.exec("(exit 7)")
    await stage.type(b"echo $? ${x-} 'half")
    await stage.wait_printed(b"'half")
    assert b"r" not in (await state_of(stage)).variables
    mark = len(stage.printed())
    await stage.type(b" line'\r")
    await stage.wait_printed(b"7 half line\r\n", mark)
    ran = await stage.exec("fc -l 1 2>/dev/null || history")
    typed = [line.split(maxsplit=1)[1] for line in ran.output.decode().splitlines()]
    assert typed == ["echo 'before'", "echo $? ${x-} 'half line'"]


async def test_variables_named_like_those_of_the_hooks_are_in_the_state(stage: Stage) -> None:
    await stage.open()
    names = ("r", "n", "k", "op", "l", "v", "o", "e", "w", "j", "m", "b")
    await stage.exec("; ".join(f"{name}=mine" for name in names))
    state = await state_of(stage)
    assert [name for name in names if b"mine" not in state.variables[name.encode()].text] == []


async def test_the_state_is_written_under_options_that_change_the_language(stage: Stage) -> None:
    await stage.open()
    if stage.shell == "bash":
        await stage.exec(
            "set -eufo posix; set -o noclobber; IFS=e; trap 'touch ran' ERR; alias printf='touch ran'; set -x"
        )
    else:
        await stage.exec("setopt ksh_arrays sh_word_split no_glob err_exit no_unset no_clobber glob_subst xtrace")
    state = await state_of(stage)
    assert {"errexit", "xtrace", "nounset" if stage.shell == "bash" else "ksharrays"} <= state.options
    assert (await stage.exec("echo fine")).exit == 0
    assert not list(stage.home.rglob("ran"))


@pytest.mark.soak(part="timing")
async def test_a_shell_that_is_busy_or_does_not_answer_is_not_waited_for(stage: Stage) -> None:
    await stage.open()
    line = stage.daemon.line
    running, client = await stage.begin("echo begun; read -r x", b"begun", stdin=True)
    assert await ask_state(line) is None
    client.send("i", b"go on\n")
    await running
    await line.wait_idle()
    (stage.run / STATE_FILE).write_text("of another time")
    bind = "bindkey" if stage.shell == "zsh" else "bind"
    await stage.exec(rf"name={bind[1:]}; b$name -r '\e[7717~'")  # after `bind`, the hooks bind their key anew
    await at_prompt(stage)
    begin = time.monotonic()
    assert await ask_state(line) is None
    assert time.monotonic() - begin < 0.5  # far less on an idle machine
    assert sorted(name for name in os.listdir(stage.run) if name.startswith(("state", "req"))) == []


@pytest.mark.soak(part="timing")
async def test_a_function_that_reads_a_line_is_not_mistaken_for_the_prompt(stage: Stage) -> None:
    await stage.open()
    read = "local hidden=1; read -e x" if stage.shell == "bash" else "vared -c x"
    await stage.exec("f() { echo in-f; " + read + "; }")
    await stage.type(b"f\r")
    await stage.wait_printed(b"in-f\r\n")
    await stage.daemon.line.watch.wait_prompt(5)
    assert await ask_state(stage.daemon.line) is None


async def test_keys_of_earlier_requests_do_not_damage_the_state(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the shell may read the key of an abandoned request only after the next request was made."""
    await stage.open()
    await stage.exec("kept=yes")
    monkeypatch.setattr(asking, "KEY", 8 * KEY)
    for _ in range(20):
        state = await state_of(stage)
        assert b"yes" in state.variables[b"kept"].text
        await at_prompt(stage)


async def test_an_incomplete_state_is_not_used(stage: Stage) -> None:
    await stage.open()
    if stage.shell == "bash":
        await stage.exec('__wp_kept() { __wp_then=; __wp_say "$__wp_kept;ok"; }')
    else:
        await stage.exec(
            "__wp_state() { print -rN -- o '' '' \"$1\" >|$__wp_f; __wp_say \"K;$__wp_id;$__wp_nonce;ok\"; false }"
        )
    assert await ask_state(await at_prompt(stage)) is None
    assert [name for name in os.listdir(stage.run) if name.startswith("state")] == []


async def test_parts_that_cannot_be_restored_are_reported_and_the_rest_is_restored(stage: Stage) -> None:
    await stage.open()
    await stage.exec("mkdir gone; cd gone; x=old; y=old")
    before = await state_of(stage)
    await stage.exec("cd ..; rmdir gone; x=new; y=new; readonly x")
    stays = await put_back(stage.daemon.line, "main", await state_of(stage), before, "it")
    assert stays[0] == "the variable x stays as it is: it is read-only"
    assert len(stays) == 2
    assert stays[1].startswith("cd: ")
    assert "No such file or directory".lower() in stays[1].lower()
    assert (await stage.exec("echo $x $y ${PWD##*/}")).output == b"new old home\n"


async def test_the_branch_variable_follows_the_file_of_the_daemon(stage: Stage) -> None:
    stage.run.mkdir(mode=0o700)
    (stage.run / "branch").write_text("one\n")
    stage.run.rename(stage.folder / "kept")
    await stage.open("export WAYPOINT_BRANCH=one")
    (stage.folder / "kept/branch").rename(stage.run / "branch")
    await stage.type(b"\r")
    assert (await stage.exec("set -u; echo $WAYPOINT_BRANCH")).output == b"one\n"
    (stage.run / "branch").write_text("two\n")
    assert (await stage.exec("sh -c 'echo $WAYPOINT_BRANCH'")).output == b"two\n"
    assert (await stage.exec("WAYPOINT_BRANCH=mine")).exit == 0
    (stage.run / "branch").write_text("three\n")
    assert (await stage.exec("echo $WAYPOINT_BRANCH; unset WAYPOINT_BRANCH")).output == b"mine\n"
    (stage.run / "branch").write_text("four\n")
    assert (await stage.exec("echo ${WAYPOINT_BRANCH-unset}")).output == b"unset\n"
