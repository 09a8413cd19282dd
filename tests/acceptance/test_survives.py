"""The whole state of a shell is restored by a fork and by a restore in place, for any user, in bash and zsh."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from tests.acceptance.restoring import MOODS, WAYS, Mood, Way, in_shell, new_name, restore_as, started
from tests.homes import Home
from waypoint.client.sdk import Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "zsh")]

BASH, ZSH = "bash", "zsh"


class Kept(NamedTuple):
    """One part of a shell's state: commands that make, show and change it; `seen` is a part of the shown output."""

    make: str
    look: str
    seen: str
    spoil: str
    shell: str = ""
    """The kind of shell that has this state; empty for any."""


KEPT = {
    "stack of folders": Kept(
        "pushd /usr >/dev/null; pushd /etc >/dev/null",
        "dirs",
        "/usr",
        "popd >/dev/null; popd >/dev/null",
    ),
    "folder": Kept(
        "mkdir -p '/tmp/a b/c'; cd '/tmp/a b/c'; cd .; cd /tmp; cd - >/dev/null",
        "pwd; echo $OLDPWD",
        "/tmp/a b/c\n/tmp\n",
        "cd /usr; cd /etc",
    ),
    "exported variable": Kept("export YOURS='x y'", "env | grep YOURS=; echo $YOURS", "YOURS=x y\nx y", "unset YOURS"),
    "variable that is not exported": Kept(
        "mine='  two  words\n'", 'printf "%s|" "$mine"; env | grep -c mine= || :', "  two  words\n|0", "mine=other"
    ),
    "readonly": Kept("readonly fixed=1", "(fixed=2); echo $fixed", "1\n", ":"),
    "integer": Kept("typeset -i number=6*7", "echo $number; (number=2*3; echo $number)", "42\n6\n", "number=1"),
    "array": Kept(
        "list=(one 'two words' '' four)",
        'echo ${#list[@]}; printf "<%s>" "${list[@]}"',
        "4\n<one><two words><><four>",
        "list=()",
    ),
    "map": Kept(
        "typeset -A map; map[key]='a value'; map[other]=2",
        'echo ${#map[@]} "${map[key]}"',
        "2 a value",
        "map[key]=lost",
    ),
    "function": Kept(
        'greet() {\n  local who=${1:-world}\n  echo "hello $who"\n}',
        "greet; greet me",
        "hello world\nhello me\n",
        "unset -f greet",
    ),
    "alias": Kept("alias hey='echo alias'", "alias hey; eval hey there", "alias there\n", "unalias hey"),
    "option": Kept(
        "set -o noclobber; set -b", "set -o | grep -i -e clobber -e notify", "clobber", "set +o noclobber; set +b"
    ),
    "bash option": Kept(
        "shopt -s nullglob extglob", "shopt nullglob extglob; echo /no-such-*", "on\n\n", "shopt -u nullglob", BASH
    ),
    "zsh option": Kept(
        "setopt null_glob extended_glob", "setopt; echo /no-such-*", "extendedglob", "unsetopt null_glob", ZSH
    ),
    "positional parameters": Kept(
        "set -- one 'two words' ''", 'echo $#; printf "<%s>" "$@"', "3\n<one><two words><>", "set -- none"
    ),
    "trap that fires": Kept(
        "trap 'echo caught >>/tmp/caught' USR1",
        ": >|/tmp/caught; kill -USR1 $$; :; cat /tmp/caught; trap",
        "caught\n",
        "trap - USR1",
    ),
    "umask": Kept("umask 027", "umask; rm -f m; touch m; stat -c %a m", "640\n", "umask 077"),
    "limits": Kept(
        "ulimit -S -n 177; ulimit -c 0",
        "ulimit -S -n; ulimit -c; sh -c 'ulimit -n'",
        "177\n0\n177\n",
        "ulimit -S -n 100",
    ),
    "history": Kept(
        "history -s 'echo from the history'",
        "history | sed 's/^ *[0-9]* *//' | grep 'echo from'",
        "echo from the history",
        "history -c",
        BASH,
    ),
    "zsh history": Kept(
        "print -s 'echo from the history'",
        "fc -l -n 1 | grep 'echo from'",
        "echo from the history",
        "print -s gone",
        ZSH,
    ),
    "completions": Kept(
        "complete -W 'one two' mine", "complete -p mine", "-W 'one two' mine", "complete -r mine", BASH
    ),
    "hash": Kept("hash -p /bin/true elsewhere", "hash -t elsewhere", "/bin/true", "hash -r", BASH),
    "key bindings": Kept("bindkey -s '^Xq' hello", "bindkey '^Xq'", "hello", "bindkey -r '^Xq'", ZSH),
    "SECONDS of a running clock": Kept(
        "SECONDS=5000", "(( SECONDS >= 5000 && SECONDS < 5100 )) && echo goes on", "goes on", "SECONDS=0"
    ),
    "pid and its parent": Kept(":", "echo $$ $PPID; sh -c 'echo $PPID'", " ", ":"),
    "the terminal": Kept(
        "stty -echoctl intr ^Y </dev/tty",
        "tty </dev/tty; stty -a </dev/tty",
        "intr = ^Y",
        "stty echoctl intr ^C </dev/tty",
        BASH,
    ),
    "file that is open, at its place": Kept(
        "printf 'a\\nb\\n' >|lines; exec 7<lines; read -r x <&7",
        "cat /proc/$$/fdinfo/7 | head -1; echo $x",
        "2\n",
        "read -r x <&7",
    ),
    "file that is open to append": Kept(
        ": >|log; exec 5>>log; echo one >&5", "cat log; readlink /proc/$$/fd/5", "one\n", "echo two >&5"
    ),
    "file that was removed": Kept(
        "exec 6<>away; echo content >&6; rm away",
        "cat /proc/$$/fd/6; sed -n 1p /proc/$$/fdinfo/6",
        "content\npos:\t8",
        "echo more >&6; exec 6>&-",
    ),
    "folder that is open and was removed": Kept(
        "mkdir folder; exec 8<folder; rmdir folder", "readlink /proc/$$/fd/8", "folder", "exec 8<&-"
    ),
    "coprocess": Kept(
        "coproc { while read -r x; do echo got $x; done; }",
        'echo hello >&${COPROC[1]}; read -r answer <&${COPROC[0]}; echo "$answer"',
        "got hello",
        "kill $COPROC_PID",
        BASH,
    ),
    "jobs": Kept(
        "sleep 1001 & first=$!; sleep 1002 &",
        "jobs; echo $! $first; kill -0 $! $first && echo both run",
        "both run",
        "kill $! $first; wait $! $first || :",
    ),
    "job that is stopped": Kept(
        "sh -c 'echo $$ >/tmp/stopped; kill -STOP $$; exec sleep 1003'",
        "jobs | grep -i -e stopped -e suspended",
        "]",
        "kill -9 $(cat /tmp/stopped)",
    ),
}


class Copies(NamedTuple):
    """The output of `look` for each state from before the capture, and the two restored sessions."""

    seen: dict[str, str]
    sessions: dict[Way, Session]


def look(session: Session, names: Iterable[str]) -> dict[str, str]:
    """Show all named states with one command; return the output of each."""
    said = in_shell(session, "\n".join(f"echo '== {name}'\n{KEPT[name].look}" for name in names))
    parts = (part.partition("\n") for part in said.split("== ")[1:])
    return {name: seen for name, _, seen in parts}


OTHERS = [f"{who}-{mood}" for who in ("root", "zsh_person") for mood in MOODS]


@pytest.fixture(
    scope="module",
    params=[
        "person-quiet",
        "person-busy",
        *(pytest.param(name, marks=pytest.mark.soak(part="matrix")) for name in OTHERS),
    ],
)
def copies(home: Home, request: pytest.FixtureRequest) -> Iterator[Copies]:
    who, _, mood_name = request.param.partition("-")
    mood: Mood = "busy" if mood_name == "busy" else "quiet"
    user = "root" if who == "root" else request.getfixturevalue(who).name
    shell = ZSH if who == "zsh_person" else BASH
    with started(home, user, mood) as session:
        kept = {name: one for name, one in KEPT.items() if one.shell in ("", shell)}
        for one in kept.values():
            session.exec(one.make)
        seen = look(session, kept)
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for one in reversed(kept.values()):
            session.exec(one.spoil)
        fork = restore_as(home, session, checkpoint, "fork")
        yield Copies(seen, {"fork": fork, "restore": restore_as(home, session, checkpoint, "restore")})


@pytest.mark.parametrize("way", WAYS)
def test_the_whole_state_of_a_shell_is_restored(copies: Copies, way: Way) -> None:
    shown = [KEPT[name].seen in seen for name, seen in copies.seen.items()]
    assert [name for name, is_there in zip(copies.seen, shown, strict=True) if not is_there] == []
    assert look(copies.sessions[way], copies.seen) == copies.seen
