"""One workload profile: its schema, which is closed, and what it says of a process. criu_profiles/README.md has the
keys.

Out of scope: where profiles lie, and which of several a process gets (known.py).
"""

import re
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Annotated, NamedTuple

import msgspec

from waypoint.model.late_pattern import late_pattern
from waypoint.processes.criu.cause_table import CAUSES

MAX_BYTES = 1 << 13  # of a profile's text: ten times what the longest of ours has
_MOST_OF_WORD = 256  # characters of a word of a command line that are compared

_STRINGS_AND_COMMENTS = late_pattern(
    r"""\"{3}(?:\\.|[^\\])*?(?:\"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?|'[^'\n]*'?|\#[^\n]*""", re.DOTALL
)
_TWO_DOTS = late_pattern(r"\.[^.=,\]\n]*\.")

_Words = Annotated[str, msgspec.Meta(min_length=1)]
_Variable = Annotated[str, msgspec.Meta(pattern="^(?!WAYPOINT_)[A-Za-z_][A-Za-z0-9_]*$")]
_File = Annotated[str, msgspec.Meta(pattern="^[^/]+$")]
_Argv = Annotated[list[_Words], msgspec.Meta(min_length=1)]
_CAUSE_NAMES = frozenset(cause.name for cause in CAUSES if not cause.is_accident)

MOST_DELETED_MIB = 4095
"""In bytes a number of 32 bits, as CRIU takes it (images/rpc.proto, ghost_limit)."""


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `match`."""

    programs: Annotated[list[_File], msgspec.Meta(min_length=1)]
    runs_scripts: bool = False


class CriuWishes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `criu`."""

    deleted_files_mib: Annotated[int, msgspec.Meta(ge=1, le=MOST_DELETED_MIB)] = 0


class AgainWishes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `again`."""

    words: list[_Words] = []
    keep: list[_Words] = []
    unasked: bool = False
    unless: list[_Words] = []
    pids: list[_Words] = []
    never: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of one profile's file."""

    match: Match
    reason: _Words
    test: str = ""
    env: dict[_Variable, str] = {}
    criu: CriuWishes = CriuWishes()
    before: _Argv | None = None
    after: _Argv | None = None
    degrades: list[_Words] = []
    remedies: dict[str, _Words] = {}
    again: AgainWishes = AgainWishes()


class StartedAgain(NamedTuple):
    """How a program is started again. `unasked`: also if it was in the foreground. `never`: in words, why it is not; ""
    if it is.
    """

    argv: list[str]
    unasked: bool = False
    never: str = ""


def parse_profile(text: str) -> Profile:
    """Raises ValueError, in words that name the key, if the text is no profile."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} characters")
    # Python's parser takes time and memory by the square of a key's dots, of which no key of the schema has two.
    if _TWO_DOTS.search(_STRINGS_AND_COMMENTS.sub("", text)):
        raise ValueError("it has a key with more than one dot")
    try:
        # strict: `VARIABLE = 0` is an error, not the string "0"
        found = msgspec.convert(tomllib.loads(text), type=Profile, strict=True)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    unknown = sorted(found.remedies.keys() - _CAUSE_NAMES)
    if unknown:
        raise ValueError(f"`{unknown[0]}` in `remedies` is none of {', '.join(sorted(_CAUSE_NAMES))}")
    again = found.again
    if again.never and again != AgainWishes(never=again.never):
        raise ValueError("`never` in `again` excludes all other keys there")
    if again.keep and not again.words:
        raise ValueError("`keep` in `again` goes with `words`")
    if again.unless and not (again.words or again.unasked):
        raise ValueError("`unless` in `again` goes with `words` or `unasked`")
    return found


def started_again(again: AgainWishes, argv: Sequence[str], head: int) -> StartedAgain:
    """How the program `argv` is started again, of which the first `head` words name it."""
    rest = argv[head:]
    if again.never or any(_is_like(word, again.unless) for word in rest):
        return StartedAgain(list(argv), never=again.never)
    if not again.words:
        return StartedAgain(list(argv), again.unasked)
    kept = _kept(rest, again.keep)
    added = [word for word in again.words if word not in kept]
    return StartedAgain([*argv[:head], *added, *kept], again.unasked)


def pids_named(again: AgainWishes, words: Sequence[str]) -> set[int]:
    """The numbers in those of `words` that name processes, as the profile says, or in the word behind one that has
    none.
    """
    found: set[int] = set()
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if _is_like(word, again.pids):
            found |= _numbers(word) or _numbers(following)
    return found


def _numbers(word: str) -> set[int]:
    return set(map(int, re.findall(r"\d+", word[:_MOST_OF_WORD])))


def _kept(words: Sequence[str], keep: Sequence[str]) -> list[str]:
    """Those of `words` that are kept. A pattern that ends with `=` is an option with a value: in the same word, or the
    next one.
    """
    kept: list[str] = []
    options = {one[:-1] for one in keep if one.endswith("=")}
    is_value = False
    for word in words:
        if is_value or word in options or word.partition("=")[0] in options or _is_like(word, keep):
            kept.append(word)
            is_value = word in options
        else:
            is_value = False
    return kept


def _is_like(word: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(word[:_MOST_OF_WORD], pattern) for pattern in patterns)
