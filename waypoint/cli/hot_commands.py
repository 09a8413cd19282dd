"""The hot verbs as click commands, made from their table: for help, completion and words about wrong usage."""

import inspect

import click

from waypoint.cli import hot
from waypoint.cli.hot_verbs import Option, Verb, parse_seconds


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
    "seconds": Seconds(positive=False),
    "positive seconds": Seconds(positive=True),
}


def make(verb: Verb) -> click.Command:
    """The command for `verb`. Its callback gets what the small parser would have found, and returns the exit status."""

    def act(**parameters: object) -> int:
        words = parameters.pop("words")
        assert isinstance(words, tuple)
        return hot.ACTIONS[verb.name]({**parameters, "words": list(words)})  # type: ignore[dict-item]

    return click.Command(
        verb.name,
        params=[*map(_option, verb.options), click.Argument(["words"], nargs=-1, required=True, metavar=verb.words)],
        callback=act,
        help=inspect.cleandoc(verb.help),
        epilog=verb.epilog,
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS] [--]",
    )


def _option(option: Option) -> click.Option:
    if option.kind == "flag":
        return click.Option(option.flags, is_flag=True, help=option.help)
    return click.Option(option.flags, type=_TYPES[option.kind], metavar=option.metavar, help=option.help)
