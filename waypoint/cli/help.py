"""`waypoint VERB --help`, laid out by click, which also knows the terminal's width. click takes 30 ms to load."""

import inspect

from waypoint.model.packages import make_importable
from waypoint.model.verbs import Verb
from waypoint.model.verbs.table import Group, first_sentence

_MAX_WIDTH = 100


def help_of(verb: Verb) -> str:
    make_importable("click")
    from click import HelpFormatter

    text = HelpFormatter(max_width=_MAX_WIDTH)
    text.write_usage(verb.command, verb.usage)
    with text.indentation():
        text.write_paragraph()
        text.write_text(inspect.cleandoc(verb.help))
    options = [(option.usage, option.help) for option in verb.options]
    with text.section("Options"):
        text.write_dl([*options, ("-h, --help", "Show this message and exit.")])
    if isinstance(verb, Group):
        with text.section("Commands"):
            text.write_dl([(word, first_sentence(member)) for word, member in verb.by_word.items()])
    with text.indentation():
        text.write_paragraph()
        text.write_text(verb.epilog)
    return text.getvalue()
