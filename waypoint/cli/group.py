"""`waypoint` as a click program. A command's module is loaded when it is used, one file per verb."""

import errno
import importlib

import click

from waypoint import __version__
from waypoint.cli import hot_commands, hot_verbs
from waypoint.cli.entry import EXIT_INTERRUPTED
from waypoint.cli.hot import EXIT_NO_READER

# In the order in which help lists them.
VERBS = ("setup", "doctor", "shell", "attach", "exec", "run", "logs", "ps", "stop", "daemon")


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
def cli(ctx: click.Context, home: str | None) -> None:
    """A terminal whose whole state can be kept, left and taken up again.

    A session is a shell on a copy-on-write view of this machine. It outlives the client that opened it, people and
    programs work in it side by side, and its files are kept when it ends.
    """
    # A default, so that every command's own --home goes before it.
    ctx.default_map = {verb: {"home": home} for verb in VERBS}


def run(argv: list[str]) -> int:
    """Run one command; its exit status. Raises WaypointError and KeyboardInterrupt."""
    try:
        code = cli.main(argv, prog_name="waypoint", standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except SystemExit as end:
        reason = end.__context__
        # Click's way when what we print cannot be written, as `| head` does it; and after completion.
        is_unread = isinstance(reason, OSError) and reason.errno == errno.EPIPE
        code = EXIT_NO_READER if is_unread else end.code
    return code if isinstance(code, int) else 0
