"""`waypoint guide`: short, and in agreement with the commands."""

import re
import shlex

import pytest

from waypoint.agents.guide import READERS, Reader, guide
from waypoint.model.verbs import parse
from waypoint.model.verbs.table import every_verb, find


@pytest.mark.parametrize("reader", [None, *READERS])
def test_the_guide_has_less_than_120_lines_of_100_characters(reader: Reader | None) -> None:
    lines = guide(reader).splitlines()
    assert len(lines) < 120
    assert max(map(len, lines)) <= 100


def test_each_command_of_the_guide_exists() -> None:
    text = guide()
    commands = re.findall(r"^waypoint [^#\n]*", text, re.MULTILINE)
    for command in (one for line in commands for one in line.split("; ")):
        parse(*find(shlex.split(command)[1:]))
    known = {verb.name for verb in every_verb()}
    listed = re.findall(r"^\* `([a-z ]+)`:", text, re.MULTILINE)
    assert len(listed) > 15
    assert set(listed) <= known
