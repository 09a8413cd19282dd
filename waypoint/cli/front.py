"""`waypoint` as a click program, made from the table of verbs: help, and messages about wrong usage."""

import errno
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from waypoint import __version__
from waypoint.cli.actions import action_of
from waypoint.cli.output import EXIT_INTERRUPTED, EXIT_NO_READER, use_home
from waypoint.model.errors import UsageProblem
from waypoint.model.names import meant
from waypoint.model.verbs import (
    MAX_NUMBER,
    MAX_SECONDS,
    Argument,
    Given,
    Group,
    Option,
    Verb,
    parse_amount,
    parse_number,
    parse_seconds,
    parse_size,
)
from waypoint.model.verbs.table import WAYPOINT

if TYPE_CHECKING:
    from waypoint.model.verbs import Value


def run(argv: list[str], *, as_json: bool = False) -> int:
    """Run one command, and return its exit status. Raises WaypointError and KeyboardInterrupt. `as_json`: wrong usage
    is raised as a UsageProblem, too, rather than told in click's way.
    """
    program = _program()
    try:
        # Not program.main(): if the reader of stdout is gone, it exits with 1, as for many other failures.
        with program.make_context("waypoint", argv) as context:
            code = program.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as problem:
        if as_json:
            raise _as_problem(problem) from problem
        problem.show()
        return problem.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        return EXIT_NO_READER
    return code if isinstance(code, int) else 0


def _as_problem(problem: click.ClickException) -> UsageProblem:
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    command = context.command_path if context is not None else "waypoint"
    return UsageProblem("understand", command, problem.format_message(), f"{command} --help")


def make(verb: Verb) -> click.Command:
    """The click command for `verb`. It calls the verb's function with the same parameters that the small parser would
    return, and returns the exit status.
    """
    if isinstance(verb, Group):
        return _Group(verb)
    command = (_WithWords if verb.arguments and verb.words else click.Command)(
        _last_word(verb),
        params=_parameters(verb),
        callback=_callback(verb),
        help=inspect.cleandoc(verb.help),
        epilog=verb.epilog,
        context_settings={"allow_interspersed_args": bool(verb.arguments) or not verb.words},
        options_metavar="[OPTIONS] [--]" if verb.words and not verb.arguments else "[OPTIONS]",
    )
    if isinstance(command, _WithWords):
        command.called = verb.words
    return command


def _program() -> click.Command:
    program = make(WAYPOINT)
    program.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.version_option(__version__, prog_name="waypoint")(program)


class _Group(click.Group):
    """The click group of a verb with members. The commands of the members are made when they are used."""

    def __init__(self, verb: Group) -> None:
        super().__init__(
            _last_word(verb),
            params=_parameters(verb),
            callback=_group_callback(verb),
            invoke_without_command=verb.acts,
            help=inspect.cleandoc(verb.help),
            epilog=verb.epilog,
        )
        self._by_word = {_last_word(member): member for member in verb.members}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._by_word)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            if args[0].startswith("-"):
                raise
            raise click.UsageError(f"{problem.message}{meant(args[0], self._by_word)}", problem.ctx) from problem

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return make(self._by_word[cmd_name]) if cmd_name in self._by_word else None


class _WithWords(click.Command):
    """A command that takes the words behind `--` as `words`. A plain click command would take them as arguments.
    `called`: how usage calls one of them.
    """

    called = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        if "--" in args:
            place = args.index("--")
            args, words = args[:place], args[place + 1 :]
        rest = super().parse_args(ctx, args)
        ctx.params["words"] = words
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), f"[-- {self.called}...]"]


class _Seconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A decimal number of seconds, in the form that the small parser understands."""

    name = "seconds"

    def __init__(self, *, positive: bool) -> None:
        self._positive = positive

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = value if isinstance(value, float) else parse_seconds(str(value))
        if seconds is None:
            self.fail(f"{value!r} is not a number of seconds up to {MAX_SECONDS}, like 90 or 0.5", param, ctx)
        if self._positive and seconds <= 0:
            self.fail("must be more than 0", param, ctx)
        return seconds


class _Parsed(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value in the form that the small parser understands. Not click's own numbers, which also take `1_0`."""

    def __init__(
        self, name: str, parse: Callable[[str], float | None], kind: str, bounds: str, examples: str = ""
    ) -> None:
        """`parse`: returns None for a text that is no such value. The other parameters are words for the message: what
        the value must be, its least and its most, an example.
        """
        self.name = name
        self._parse = parse
        self._kind = kind
        self._bounds = bounds
        self._examples = examples

    def within(self, bounds: str) -> "_Parsed":
        """The same kind of value with other bounds, unless they are ""."""
        return _Parsed(self.name, self._parse, self._kind, bounds or self._bounds, self._examples)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = value if isinstance(value, int | float) else self._parse(str(value))
        if found is None:
            self.fail(f"{value!r} is not a {self._kind} from {self._bounds}{self._examples}", param, ctx)
        return found


_NUMBER = _Parsed("integer", parse_number, "number", f"1 to {MAX_NUMBER}")
_NUMBERS = {
    "number": _NUMBER,
    "size": _Parsed("size", parse_size, "size", f"1 to {MAX_NUMBER}", ", such as 512M or 2G"),
    "amount": _Parsed("amount", parse_amount, "number", f"above 0 to {MAX_SECONDS}", ", such as 2 or 0.5"),
}
_TYPES = {
    "text": click.STRING,
    "seconds": _Seconds(positive=False),
    "positive seconds": _Seconds(positive=True),
}


def _last_word(verb: Verb) -> str:
    return verb.name.rpartition(" ")[2]


def _callback(verb: Verb) -> Callable[..., int]:
    def act(**parameters: "Value | tuple[str, ...]") -> int:
        given = Given({name: list(one) if isinstance(one, tuple) else one for name, one in parameters.items()})
        given["home"] = given.text("home") or click.get_current_context().obj
        use_home(given.text("home"))
        return action_of(verb.name)(given)

    return act


def _group_callback(verb: Group) -> Callable[..., int]:
    act = _callback(verb)

    def begin(**parameters: "Value | tuple[str, ...]") -> int:
        context = click.get_current_context()
        context.obj = parameters.get("home") or context.obj  # for a member that was not given a --home itself
        return act(**parameters) if verb.acts and context.invoked_subcommand is None else 0

    return begin


def _parameters(verb: Verb) -> list[click.Parameter]:
    found: list[click.Parameter] = [*map(_option, verb.options), *map(_argument, verb.arguments)]
    if verb.words and not verb.arguments:
        found.append(click.Argument(["words"], nargs=-1, required=True, metavar=verb.words))
    return found


def _argument(argument: Argument) -> click.Argument:
    return click.Argument(
        [argument.name],
        nargs=-1 if argument.many else 1,
        required=argument.required,
        type=_NUMBER if argument.is_number else None,
        metavar=argument.usage,
    )


def _only_one(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> str | None:
    """The value that was given of an option of kind "choice", which may be given twice if it says the same."""
    if len(set(values)) > 1:
        raise click.BadParameter(f"it is {' and '.join(values)}: give one of them", param=option)
    return values[0] if values else None


def _option(option: Option) -> click.Option:
    if option.kind == "flag":
        return click.Option(option.flags, is_flag=True, help=option.help)
    if option.kind == "choice":
        kinds = click.Choice(option.choices)
        return click.Option(option.flags, type=kinds, multiple=True, callback=_only_one, help=option.help)
    if option.kind == "texts":
        return click.Option(option.flags, multiple=True, metavar=option.metavar, help=option.help)
    if option.kind in _NUMBERS:
        kind = _NUMBERS[option.kind].within(option.bounds)
        return click.Option(option.flags, type=kind, metavar=option.metavar, help=option.help)
    return click.Option(option.flags, type=_TYPES[option.kind], metavar=option.metavar, help=option.help)
