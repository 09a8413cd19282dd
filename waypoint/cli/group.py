"""`waypoint` as a click program. A command's module is loaded when it is used, one file per verb."""

import errno
import importlib
import os

import click
from click.shell_completion import shell_complete

from waypoint import __version__
from waypoint.cli import hot_commands, hot_verbs
from waypoint.cli.entry import COMPLETION_VARIABLE, EXIT_INTERRUPTED, EXIT_NO_READER

# In the order in which help lists them.
VERBS = (
    *("setup", "doctor", "shell", "attach", "exec", "run", "logs", "ps", "stop"),
    *("checkpoint", "restore", "fork", "branch", "log", "show", "rm", "undo", "op", "daemon"),
)


class LazyGroup(click.Group):
    """Finds the command VERB as `command` in waypoint/cli/commands/VERB.py; the hot ones are made from their table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in hot_verbs.VERBS:
            return hot_commands.make(hot_verbs.VERBS[cmd_name])
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"waypoint.cli.commands.{cmd_name}")
        command: click.Command = module.command
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A first session: sudo waypoint setup, then waypoint shell. 'waypoint COMMAND --help' has examples.",
)
@click.option("--home", metavar="DIR", help="The home to use (default: $WAYPOINT_HOME).")
@click.version_option(__version__, prog_name="waypoint")
@click.pass_context
def cli(context: click.Context, home: str | None) -> None:
    """A terminal whose whole state can be kept, left and taken up again.

    A session is a shell on a copy-on-write view of this machine. It outlives the client that opened it, people and
    programs work in it side by side. Checkpoints keep its files, processes and terminal; from each any number of
    sessions can go on.
    """
    context.obj = home  # for commands that are given none themselves


def run(argv: list[str]) -> int:
    """Run one command; its exit status. Raises WaypointError and KeyboardInterrupt."""
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        return shell_complete(cli, {}, "waypoint", COMPLETION_VARIABLE, instruction)
    try:
        # Not cli.main: that answers a pipe which nobody reads with 1, like many another failure.
        with cli.make_context("waypoint", argv) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        return EXIT_NO_READER
    return code if isinstance(code, int) else 0
