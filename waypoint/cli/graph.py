"""The drawing beside `log --graph`, in the manner of git's: which capture goes on from which. Pure."""

from collections.abc import Iterator, Mapping, Sequence


def draw(parents: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str | None]]:
    """Yield lines of the drawing, each with the node that it is for, None for a line between two nodes.

    `parents`: of every node, children before their parents. A parent that is no node itself is below the drawing.
    """
    columns: list[str] = []  # the node that each line downwards leads to
    between: list[str] = []
    for node, its_parents in parents.items():
        yield from ((line, None) for line in between)
        if node not in columns:
            columns.append(node)
        here = columns.index(node)
        yield " ".join("*" if number == here else "|" for number in range(len(columns))), node
        between, columns = _lead_on(columns, here, its_parents)


def _lead_on(columns: Sequence[str], here: int, parents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Go on from the node in column `here` to its parents: the lines between, and the columns after them."""
    ends = [(number, aim) for number, node in enumerate(columns) for aim in (parents if number == here else [node])]
    after = list(dict.fromkeys(aim for _, aim in ends))  # lines to the same node become one, in the leftmost place
    moves = [(number, after.index(aim)) for number, aim in ends]
    between = []
    while any(place != goal for place, goal in moves):
        line = [" "] * (2 * max(map(max, moves)) + 1)
        for place, goal in moves:
            step = _step(place, goal)
            line[2 * place + step] = "/|\\"[step + 1]
        between.append("".join(line).rstrip())
        moves = [(place + _step(place, goal), goal) for place, goal in moves]
    return between, after


def _step(place: int, goal: int) -> int:
    return (goal > place) - (goal < place)
