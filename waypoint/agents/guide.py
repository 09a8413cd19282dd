"""The text that an agent reads once, to work with Waypoint: `waypoint guide`.

Its last part is made from the table of verbs, and a test runs its examples from the first to the last, so that an agent
is told nothing which is not so.
"""

from waypoint.model.verbs.table import every_verb, first_sentence

AGENTS = ("claude", "codex")
"""Agents with forms of their own for such a text."""

_TITLE = "# Waypoint"
_WHAT = (
    "Checkpoint, restore and fork a whole terminal session: files, running processes with their memory, shell. Use it "
    "before anything that may do damage (deleting, upgrading, migrating, rewriting), to try several ways at once from "
    "one state, and to take back what went wrong, whatever did it: a shell command, a package manager, a database."
)

_WORK = """
A session is a shell on a copy of this machine. What is done in it does not happen to the machine, and its whole state
can be captured in some milliseconds, brought back, and copied. It goes on between your commands.

## Begin

```sh
waypoint shell work -d                                      # start the branch `work`, once
waypoint exec -b work -- 'mkdir -p ~/app && cd ~/app'       # run in its shell: cd, export and jobs stay
waypoint exec -b work -- 'echo one >notes; sleep 1000 &'    # the folder is still ~/app
```

`exec` prints what the command prints, and has its exit status; `--timeout S` ends a command that hangs. Use `run` for a
process apart from the shell, such as to look at something while a command runs.

## Before a risk: name the moment. After a failure: go back

```sh
waypoint checkpoint safe -b work -m 'tests are green'       # files, processes, shell, terminal
waypoint exec -b work -- 'rm -r ~/app/*; kill %1'           # the damage
waypoint restore safe -b work                               # all as it was, the processes run again
waypoint undo -b work                                       # takes the restore back: nothing was lost
waypoint restore safe -b work
```

Take one whenever you would be sorry to lose the state. It costs little, and harms nothing that runs.
`waypoint log work` lists them, `waypoint diff safe work` says what has changed since.

## Try several ways at once, keep the best

```sh
waypoint fork safe -n 3 --prefix try -- 'echo way {i} >>notes; wc -l <notes'
waypoint diff safe try-2 --patch                            # what one of them has done
waypoint stop try-1 try-3 --discard                         # throw the others away
```

Each is a session of its own, with copies of the processes of `safe`; go on in the best: `waypoint exec -b try-2`.

## Bring work to the machine

```sh
waypoint diff try-2                                         # all that it has changed of the machine
waypoint apply try-2 --dry-run -- ~/app                     # what would be done; nothing is
waypoint cp try-2:$HOME/app/notes notes                    # or take one file
```

`waypoint apply try-2 -- PATH...` puts changes onto the machine: all of them or none, taken back by `waypoint undo`. It
is the one command here that changes the machine: ask the user first.

## End

```sh
waypoint stop work                                          # ends it, and keeps its files
waypoint stop try-2 --discard                               # ends it, and throws them away
waypoint branch delete work                                 # forgets the branch and its files
waypoint rm safe                                            # and the checkpoint
```

## Rules

* When a command fails it says what was tried, on what, the system's own words, and a line `next:`. Do what that says.
* With `--json` a result is one JSON value on stdout, and so is a failure: `{"error": {...}}`.
* Exit status: 0 done, 1 the thing said no, 2 wrong usage or unknown name, 3 this machine lacks something, 4 wrong
  moment or the name is taken, 5 the processes cannot be kept as asked, 6 conflicts, 10 stored data are damaged. `exec`
  and `run` have the command's own; 124 after --timeout, 125 if Waypoint itself failed.
* What was kept less faithfully than you asked is said on stderr, as `degraded`. Tell the user.
* Inside a session (`$WAYPOINT_BRANCH` is set), `waypoint checkpoint NAME`, `restore`, `fork`, `log` and `status` work
  on the session itself. A restore there takes you back, too, if you run in the session.
* Choose names that say what the moment is: `deps-installed`, `bug-reproduced`, `before-migration`.
"""


def text(agent: str = "") -> str:
    """The guide. `agent`: one of AGENTS, for a text in its form: a skill of Claude Code, a part of Codex' AGENTS.md."""
    head = f"{_TITLE}\n\n{_WHAT}\n"
    if agent == "claude":
        head = f'---\nname: waypoint\ndescription: "{_WHAT}"\n---\n\n{_TITLE}\n'
    return (
        f"{head}{_WORK}\n## All commands\n\n`waypoint COMMAND --help` has the options, and examples.\n\n{_commands()}"
    )


def _commands() -> str:
    return "".join(f"* `{verb.name}`: {first_sentence(verb)}\n" for verb in every_verb())
