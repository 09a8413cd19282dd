"""Situations in which the program advises a next step: one row for each text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.homes import Home


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A situation that ends in a message with a next step.

    `advice`: the text of the step, as tests/repo/next_steps.py finds it in the program. `meet`: the words of the
    command whose message it is. `inside`: that command and those of the step are typed inside the session on `main`.
    `before`: commands that lead there. `fill`: what a reader puts in place of capital letters, also in `meet`.
    `follow`: the shell text that a reader types, if the step is in words; otherwise each command in the step is
    executed as it is printed. `gives_up`: names whose loss, and branches whose sessions' end, is what the step is for.
    `again`: whether the first command succeeds afterwards.
    """

    advice: str
    meet: tuple[str, ...]
    inside: bool = False
    before: tuple[tuple[str, ...], ...] = ()
    fill: Mapping[str, str | Callable[[Home], str]] = field(default_factory=dict)
    follow: str = ""
    gives_up: tuple[str, ...] = ()
    again: bool = False


def live(branch: str) -> tuple[str, ...]:
    return ("shell", branch, "-d")


def oldest_capture(home: Home) -> str:
    return str(home.must("log", "aged", "--json").json()[-1]["capture"])


def beside(home: Home) -> str:
    return str(home.path.parent / "beside")


ROWS = (
    Row(advice="'waypoint log --all' lists what there is", meet=("restore", "nosuch")),
    Row(advice="'waypoint log --all' lists them", meet=("rm", "nosuch")),
    Row(
        advice="ask for some of them, or for all that there is",
        meet=("du", *(f"name-{number}" for number in range(257))),
        follow="waypoint du",
    ),
    Row(
        advice="give {} to {}",
        meet=("shell", "tiny", "-d", "--memory", "1M"),
        follow="waypoint shell tiny -d --memory 64M && waypoint stop tiny --discard",
    ),
    Row(
        advice="give --memory {}M or more",
        before=(
            live("heavy"),
            ("exec", "-b", "heavy", "--", "held=$(head -c 100M /dev/zero | tr '\\0' x)"),
            ("checkpoint", "heavier", "-b", "heavy", "--park"),
        ),
        meet=("shell", "heavy", "-d", "--memory", "64M"),
        follow="waypoint shell heavy -d --memory 600M && waypoint stop heavy --discard",
        gives_up=("heavy",),
    ),
    Row(advice="'waypoint branch' lists them", meet=("branch", "delete", "nosuch")),
    Row(advice="see 'waypoint op log'", meet=("undo", "99999")),
    Row(
        advice="park it first, which keeps its programs: waypoint checkpoint NAME -b {} --park",
        before=(live("removed"),),
        meet=("rm", "removed"),
        fill={"NAME": "removed-parked"},
        gives_up=("removed",),
        again=True,
    ),
    Row(
        advice="leave that out to go on with it; or park it, then ask again: {}",
        before=(live("unequal"),),
        meet=("shell", "unequal", "-d", "--pids", "200"),
        fill={"NAME": "unequal-parked"},
        gives_up=("unequal",),
        again=True,
    ),
    Row(
        advice="leave --from out: waypoint shell {}",
        before=(live("itself"),),
        meet=("shell", "itself", "-d", "--from", "itself"),
        gives_up=("itself",),
    ),
    Row(advice="{} --help", meet=("ps", "--nosuch", "--json")),
    Row(
        advice="waypoint {} --help tells what it takes inside a session",
        meet=("show",),
        inside=True,
    ),
    Row(advice="waypoint --help; other commands work outside", meet=("gc",), inside=True),
    Row(advice="'waypoint log' lists what is", meet=("show", "other"), inside=True),
    Row(
        advice="leave the branch out",
        meet=("logs", "-b", "other"),
        inside=True,
        follow="waypoint logs",
    ),
    Row(
        advice="to go on as {}: waypoint {} --user {}",
        before=(("shell", "nobodys", "-d", "--user", "nobody", "--cwd", "/"),),
        meet=("shell", "nobodys", "-d", "--user", "root"),
        gives_up=("nobodys",),
    ),
    Row(
        advice="name the home: waypoint --home DIR setup --remove",
        before=(("--home", "BESIDE", "setup"),),
        meet=("--home", "/usr", "setup", "--remove", "--yes"),
        fill={"DIR": beside, "BESIDE": beside},
    ),
    Row(
        advice="go back to another capture ('waypoint log --all' lists them)",
        before=(
            live("aged"),
            ("checkpoint", "aged-1", "-b", "aged"),
            ("checkpoint", "aged-2", "-b", "aged"),
            ("rm", "aged-1"),
            ("gc", "--keep-operations", "0"),
        ),
        meet=("restore", "CAPTURE"),
        fill={"CAPTURE": oldest_capture},
    ),
    Row(
        advice="name the folder by another path",
        meet=("shell", "way", "-d", "--bind", "/proc/1/root/usr:/mnt"),
        follow="waypoint shell way -d --bind /usr:/mnt",
    ),
    Row(
        advice="start a branch from it: waypoint shell NEW --from {} -d",
        meet=("checkpoint", "noted-2", "-b", "noted"),
        fill={"NEW": "from-noted"},
    ),
    Row(
        advice="'waypoint ps --all' lists what there is; to start it: waypoint shell {} -d",
        meet=("exec", "-b", "unborn", "--", "true"),
        again=True,
    ),
    Row(
        advice="go on with {}: waypoint shell {}",
        # It is ended at its prompt: killed in the middle of a ~/.bashrc, a program such as pyenv leaves a lock, for
        # which the next shell waits a minute.
        before=(live("ended"), ("exec", "-b", "ended", "--", "true"), ("stop", "ended")),
        meet=("exec", "-b", "ended", "--", "true"),
    ),
    Row(
        advice="to be rid of its files, too, remove the branch: waypoint rm {}",
        before=(live("done-with"), ("stop", "done-with")),
        meet=("stop", "done-with", "--discard"),
        gives_up=("done-with",),
    ),
    Row(
        advice="take it back on all of them: waypoint undo {}",
        before=(live("several"), ("fork", "several", "-n", "2", "--prefix", "one-of")),
        meet=("undo", "-b", "one-of-1"),
        gives_up=("one-of-1", "one-of-2"),
    ),
    Row(
        advice="fork it as it is now: waypoint fork {} {}",
        before=(live("forked"),),
        meet=("shell", "forked-2", "--from", "forked", "-d"),
    ),
    Row(
        advice="make a checkpoint of it: waypoint checkpoint NAME -b {}",
        before=(live("fresh"),),
        meet=("restore", "fresh"),
        fill={"NAME": "of-fresh"},
    ),
    Row(
        advice=", or move that one: waypoint checkpoint --force {} -b {}{}",
        before=(live("moved"), ("checkpoint", "to-move", "-b", "moved")),
        meet=("stop", "moved", "--checkpoint", "to-move"),
        gives_up=("moved",),
    ),
    Row(
        advice="choose another name",
        meet=("checkpoint", "main"),
        follow="waypoint checkpoint another-name",
    ),
    Row(advice="leave one out", meet=("logs", "main", "-b", "other"), follow="waypoint logs main"),
    Row(
        advice="leave one of them out",
        meet=("restore", "noted", "-b", "a", "--new", "b"),
        follow="waypoint restore noted --new left-out",
    ),
    Row(
        advice="give one branch",
        before=(live("one"),),
        meet=("stop", "one", "main", "--checkpoint", "kept-one"),
        follow="waypoint stop one --checkpoint kept-one",
        gives_up=("one",),
    ),
    Row(
        advice="for the files alone: waypoint shell {} --from {} --tier files",
        meet=("restore", "noted", "--new", "only-files", "--only", "files"),
    ),
    Row(
        advice="name the branches, or give -n N",
        meet=("fork", "noted"),
        follow="waypoint fork noted -n 1 --prefix named",
    ),
    Row(
        advice="fork several times",
        meet=("fork", "noted", "-n", "300"),
        follow="waypoint fork noted -n 1 --prefix several",
    ),
    Row(advice="choose other names", meet=("fork", "noted", "twin", "twin"), follow="waypoint fork noted twin"),
    Row(
        advice="use letters, digits, '.', '_' and '-', in parts joined by '/'",
        meet=("checkpoint", "bad name"),
        follow="waypoint checkpoint good/name-1",
    ),
    Row(advice="use -d too", meet=("shell", "json", "--json"), follow="waypoint shell json --json -d"),
    Row(
        advice="leave it out, or give one",
        meet=("exec", "--cwd", "", "--", "true"),
        follow="waypoint exec --cwd / -- true",
    ),
    Row(
        advice="--env LANG=C", meet=("exec", "--env", "LANG", "--", "true"), follow="waypoint exec --env LANG=C -- true"
    ),
    Row(advice="see --help", meet=("shell", "bound", "-d", "--bind", "nonsense"), follow="waypoint shell --help"),
    Row(
        advice="make it, or give other --bind options",
        meet=("shell", "bound", "-d", "--bind", "/nonexistent:/x"),
        follow="waypoint shell bound -d --bind /usr:/x",
    ),
    Row(advice="see 'getent passwd'", meet=("setup", "--user", "nosuch-user"), follow="getent passwd"),
    Row(advice="see 'getent group'", meet=("setup", "--group", "nosuch-group"), follow="getent group"),
    Row(advice="see what is in it: {}; then say --yes", meet=("setup", "--remove")),
    Row(
        advice="name the home: waypoint --home DIR daemon logs",
        meet=("--home", "/nonexistent", "daemon", "logs"),
        fill={"DIR": lambda home: str(home.path)},
    ),
    Row(advice="name another folder", meet=("--home", "/proc/1/root", "ps"), follow="waypoint ps"),
    Row(
        advice="name a folder that is empty or not there yet: waypoint --home DIR setup",
        meet=("--home", "/usr", "setup"),
        fill={"DIR": beside},
    ),
    Row(
        advice="a number with s, m, h, d or w behind it, such as 12h or 30d",
        meet=("gc", "--keep-operations", "7"),
        follow="waypoint gc --keep-operations 12h",
    ),
    Row(
        advice="name a folder that its user can enter, or leave out --cwd",
        meet=("shell", "nofolder", "-d", "--cwd", "/no/such"),
        follow="waypoint shell nofolder -d --cwd /usr",
    ),
    Row(
        advice="name a program that the session has, behind --, or leave it out for a shell",
        meet=("shell", "noprogram", "-d", "--", "nosuch"),
        follow="waypoint shell noprogram -d -- sleep 100",
    ),
    Row(
        advice="name a shell that the session has, by its path or its name",
        meet=("shell", "noshell", "-d", "--shell", "/no/such"),
        follow="waypoint shell noshell -d --shell bash",
    ),
    Row(
        advice="choose another name, or bring it back on this branch: waypoint restore {} -b {}",
        before=(live("taken"), ("exec", "-b", "taken", "--", "true"), ("stop", "taken")),
        meet=("shell", "taken", "--from", "noted", "-d"),
    ),
    Row(
        advice="start a new branch for another base",
        before=(live("based"), ("exec", "-b", "based", "--", "true"), ("stop", "based")),
        meet=("shell", "based", "-d", "--base", "/usr"),
        follow="waypoint shell based",
    ),
    Row(
        advice="choose another place",
        meet=("shell", "placed", "-d", "--bind", "/usr:/proc"),
        follow="waypoint shell placed -d --bind /usr:/mnt",
    ),
    Row(
        advice="give --base DIR",
        meet=("shell", "baseless", "-d", "--base", "/nonexistent"),
        follow="waypoint shell baseless -d --base /",
    ),
    Row(
        advice="give --user NAME",
        meet=("shell", "userless", "-d", "--user", "nosuch-user"),
        follow="waypoint shell userless -d --user root",
    ),
    Row(
        advice="leave that out, or have its programs started again (--tier respawn), or not at all (--tier files)",
        meet=("shell", "from-live", "-d", "--from", "noted", "--cwd", "/usr"),
        follow="waypoint shell from-live -d --from noted --cwd /usr --tier respawn",
    ),
    Row(
        advice="give the branches their whole names",
        meet=("fork", "noted", "whole", "--prefix", "p"),
        follow="waypoint fork noted whole",
    ),
    Row(
        advice="see what it had shown when it was captured before: waypoint logs {}",
        before=(live("shown"), ("checkpoint", "was-shown", "-b", "shown"), ("stop", "shown")),
        meet=("logs", "shown"),
    ),
    Row(
        advice="say --check, too, or leave --json out",
        meet=("setup", "--json"),
        follow="waypoint setup --check --json",
    ),
    Row(
        advice="leave out --discard or --checkpoint",
        before=(live("kept-or-not"),),
        meet=("stop", "kept-or-not", "--discard", "--checkpoint", "kept"),
        follow="waypoint stop kept-or-not --checkpoint kept",
        gives_up=("kept-or-not",),
    ),
)
