"""Queries: output that a terminal answers as if the answer were typed (what it is, where its cursor is, its colours).

A program that asks wants one answer. So of all who are shown the same terminal one is asked, and the others are not;
nor is anybody who is shown a query of earlier, whose program is long gone.
"""

from waypoint.model.late_pattern import late_pattern

_QUERY = late_pattern(
    rb"\x1b(?:\[[>=?]?[0-9;]*(?:c|[56]n|\?[0-9;]*n|x|\$p)|\[\?[0-9;]*\$p|\[>[0-9]*q|\[\?u|\[1[1-9]t|\[2[01]t|Z"
    rb"|\][0-9;]*;\?(?:\x07|\x1b\\)|P[+$]q[^\x07\x1b]{0,1024}\x1b\\)"
)
# What a query may begin with. A longer one is none: no terminal is asked for more.
_UNFINISHED = late_pattern(
    rb"\x1b(?:\[[>=?]?[0-9;?]{0,256}\$?|\][0-9;]{0,256}(?:\?\x1b?)?|P(?:[+$](?:q[^\x07\x1b]{0,1024}\x1b?)?)?)?\Z"
)


def without(data: bytes) -> bytes:
    """`data` without its queries."""
    return _QUERY.sub(b"", data)


class Unasked:
    """Takes the queries out of a stream that arrives in arbitrary pieces, as long as others are to answer them."""

    def __init__(self) -> None:
        self._held = b""  # bytes that may be the beginning of a query

    def feed(self, data: bytes, *, asked: bool) -> bytes:
        """Returns what to show of `data`. Bytes at its end that may be the beginning of a query are held back until the
        next piece. `asked`: the queries are for whoever is shown this.
        """
        data, self._held = self._held + data, b""
        if asked or b"\x1b" not in data:
            return data
        data = without(data)
        end = _UNFINISHED.search(data, max(0, len(data) - 1300))
        if end is None:
            return data
        self._held = end.group()
        return data[: end.start()]
