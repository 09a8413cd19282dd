"""Commands in what people are told, made to act on the home that the telling is about."""

import re

from waypoint.model.paths import SYSTEM_HOME, quoted
from waypoint.model.verbs.table import WAYPOINT

_VERBS = "|".join(re.escape(member.name) for member in WAYPOINT.members)
_COMMAND = re.compile(rf"(?<![\w./-])(sudo )?waypoint (?=(?:{_VERBS})\b)")


def on_home(text: str, home: str, plain: str) -> str:
    """`text` with `--home HOME` in each command of Waypoint's that names no home and would act on another one than
    `home`. `plain`: the home on which such a command acts; behind `sudo`, which drops WAYPOINT_HOME, on the machine's.
    """

    def name(found: re.Match[str]) -> str:
        reached = SYSTEM_HOME if found[1] else plain
        return found[0] if reached == home else f"{found[0]}--home {quoted(home)} "

    return _COMMAND.sub(name, text)
