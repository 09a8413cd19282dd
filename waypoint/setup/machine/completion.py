"""Files with completion functions, which bash and zsh load automatically. They run `waypoint __complete`
(waypoint/cli/completion.py) at each TAB, so they do not depend on the verbs of this version.

Sources: bash(1), "Programmable Completion"; zshcompsys(1); the README of bash-completion, which lists its folders.
"""

import json
from pathlib import Path

BASH = "bash-completion/completions/waypoint"
ZSH = "zsh/site-functions/_waypoint"
"""Paths of the files below a folder for data, such as /usr/local/share or ~/.local/share (bash only)."""

_HEAD = """\
# Completion of `waypoint` in {shell}, written by 'waypoint setup'. It is removed together with the last home.
# homes: {homes}
"""

_BASH = """\
_waypoint() {
    local word help kind joined="" answer program
    local -a words=()
    # bash splits words at = and :, so join the parts again.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $word == [=:]* && ${#words[@]} -gt 0 ]]; then
            words[-1]+=$word joined=1
        elif [[ $joined ]]; then
            words[-1]+=$word joined=""
        else
            words+=("$word")
        fi
    done
    local typed=${COMP_WORDS[COMP_CWORD]}
    [[ $typed == [=:]* ]] && typed=""
    local before=${words[-1]%"$typed"}
    program=$(type -P waypoint) && program=("$program") || program=(@PROGRAM@)
    answer=$("${program[@]}" __complete "${words[@]}" 2>/dev/null </dev/null) || return 0
    COMPREPLY=()
    compopt -o nosort 2>/dev/null # bash 4.4; try-2 comes before try-10
    {
        read -r kind
        while IFS=$'\\t' read -r word help; do
            COMPREPLY+=("${word#"$before"}")
        done
    } <<<"$answer"
    case $kind in
    files) compopt -o default ;;
    folders) compopt -o dirnames ;;
    commands) COMPREPLY+=($(compgen -c -- "$typed")) && [[ $typed != */* ]] || compopt -o default ;;
    users) COMPREPLY+=($(compgen -u -- "$typed")) ;;
    groups) COMPREPLY+=($(compgen -g -- "$typed")) ;;
    esac
    return 0
}
complete -F _waypoint waypoint
"""

_ZSH = """\
local kind line answer
local -a lines program offered shown
program=("$(whence -p waypoint)")
[[ -n $program[1] ]] || program=(@PROGRAM@)
answer=$("${program[@]}" __complete "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null </dev/null) || return 1
lines=("${(@f)answer}")
kind=$lines[1]
for line in "${(@)lines[2,-1]}"; do
    offered+=("${line%%$'\\t'*}")
    shown+=("${${line/$'\\t'/  -- }%  -- }")
done
if (( $#offered )); then
    if [[ ${(j::)shown} == ${(j::)offered} ]]; then
        compadd -V waypoint -a offered
    else
        compadd -V waypoint -l -d shown -a offered
    fi
fi
[[ $PREFIX == --*=* ]] && compset -P '*='
case $kind in
files) _files ;;
folders) _files -/ ;;
commands) _alternative 'commands:command:_command_names -e' 'files:file:_files' ;;
users) _users ;;
groups) _groups ;;
esac
"""


def scripts(homes: list[str], program: list[str]) -> dict[str, str]:
    """The content of each file, by its path below a folder for data.

    `homes`: the homes that use the files. `program`: the words of the command to run if there is no `waypoint` in PATH,
    for example because it is an alias.
    """
    words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in program)
    heads = {shell: _HEAD.format(shell=shell, homes=json.dumps(homes)) for shell in ("bash", "zsh")}
    return {
        BASH: heads["bash"] + _BASH.replace("@PROGRAM@", words),
        ZSH: f"#compdef waypoint\n{heads['zsh']}{_ZSH.replace('@PROGRAM@', words)}",
    }


def homes_of(script: Path) -> list[str]:
    """The homes whose setup has written the file; empty if there is none."""
    try:
        lines = script.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = next((line.removeprefix("# homes: ") for line in lines if line.startswith("# homes: ")), "[]")
    try:
        homes = json.loads(found)
    except ValueError:  # somebody has edited the file
        return []
    return [str(home) for home in homes] if isinstance(homes, list) else []
