"""The hot verbs as click commands, made from their table: for help, completion and words about wrong usage."""

import inspect

import click

from waypoint.cli import hot
from waypoint.cli.hot_verbs import Argument, Option, Verb, parse_seconds
from waypoint.cli.options import group_home


class Seconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A decimal number of seconds, as the small parser has it."""

    name = "seconds"

    def __init__(self, *, positive: bool) -> None:
        self._positive = positive

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = value if isinstance(value, float) else parse_seconds(str(value))
        if seconds is None:
            self.fail(f"{value!r} is not a number of seconds, like 90 or 0.5", param, ctx)
        if self._positive and seconds <= 0:
            self.fail("must be more than 0", param, ctx)
        return seconds


_TYPES = {
    "text": click.STRING,
    "number": click.IntRange(min=1),
    "seconds": Seconds(positive=False),
    "positive seconds": Seconds(positive=True),
}


def make(verb: Verb) -> click.Command:
    """The command for `verb`. Its callback gets what the small parser would have found, and returns the exit status."""

    def act(**parameters: object) -> int:
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in parameters.items()}
        listed["home"] = listed["home"] or group_home()
        return hot.ACTIONS[verb.name](listed)  # type: ignore[arg-type]

    return (_WithCommandLine if verb.arguments and verb.words else click.Command)(
        verb.name,
        params=[*map(_option, verb.options), *(map(_argument, verb.arguments) if verb.arguments else [_words(verb)])],
        callback=act,
        help=inspect.cleandoc(verb.help),
        epilog=verb.epilog,
        context_settings={"allow_interspersed_args": bool(verb.arguments)},
        options_metavar="[OPTIONS]" if verb.arguments else "[OPTIONS] [--]",
    )


class _WithCommandLine(click.Command):
    """What stands behind `--` is `words`; without it, click would take that for arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        if "--" in args:
            place = args.index("--")
            args, words = args[:place], args[place + 1 :]
        rest = super().parse_args(ctx, args)
        ctx.params["words"] = words
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- CMD...]"]


def _argument(argument: Argument) -> click.Argument:
    metavar = argument.metavar if argument.required else f"[{argument.metavar}]"
    return click.Argument(
        [argument.name],
        nargs=-1 if argument.many else 1,
        required=argument.required,
        metavar=f"{metavar}..." if argument.many else metavar,
    )


def _words(verb: Verb) -> click.Argument:
    return click.Argument(["words"], nargs=-1, required=True, metavar=verb.words)


def _option(option: Option) -> click.Option:
    if option.kind == "flag":
        return click.Option(option.flags, is_flag=True, help=option.help)
    if option.kind == "choice":
        return click.Option(option.flags, type=click.Choice(option.choices), help=option.help)
    if option.kind == "texts":
        return click.Option(option.flags, multiple=True, metavar=option.metavar, help=option.help)
    return click.Option(option.flags, type=_TYPES[option.kind], metavar=option.metavar, help=option.help)
