"""Regular expressions whose definition costs little: programs define a hundred, and use few."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import AnyStr


def late_pattern(text: "AnyStr", flags: int = 0) -> "re.Pattern[AnyStr]":
    """As `re.compile` (0.2 ms), which is called when something of the expression is asked for. A wrong expression
    raises then.

    For methods and attributes of a pattern: the functions of `re` do not take the result.
    """
    return _LatePattern(text, flags)  # type: ignore[return-value]


class _LatePattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self._made: tuple[str | bytes, int] = text, flags

    def __getattr__(self, name: str) -> object:
        import re

        made = re.compile(*self._made)  # type: ignore[type-var]  # `re` keeps it
        found = getattr(made, name)
        setattr(self, name, found)
        return found
