"""Adds `--home` to the commands in a message, so that they act on the home that the message is about."""

import re

from waypoint.model.paths import SYSTEM_HOME, quoted
from waypoint.model.verbs.table import WAYPOINT

_VERBS = "|".join(re.escape(member.name) for member in WAYPOINT.members)
_COMMAND = re.compile(rf"(?<![\w./-])(sudo )?waypoint (?=(?:{_VERBS})\b)")


def on_home(text: str, home: str, plain: str) -> str:
    """`text`, with `--home HOME` added to each waypoint command that would act on another home than `home`.

    `plain`: the home on which a command without `--home` acts. Behind `sudo`, which drops WAYPOINT_HOME, it acts on the
    machine's home.
    """

    def name(found: re.Match[str]) -> str:
        reached = SYSTEM_HOME if found[1] else plain
        return found[0] if reached == home else f"{found[0]}--home {quoted(home)} "

    return _COMMAND.sub(name, text)
