"""The rules for names of branches and checkpoints, which share one name space.

This module imports nothing that is slow to load: the command line's fast path checks names before anything else.
"""

from waypoint.model.errors import UsageProblem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAME_BYTES = 100
DEFAULT_BRANCH = "main"  # the branch that is meant if none is named
OWN_LAYERS = ("files", "processes", "programs", "shell", "terminal")  # that a capture may have by itself
_LETTERS_A_MISTAKE, _MOST_MEANT = 3, 3
_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_REST = _FIRST | frozenset("._-")


def parse_name(text: str) -> str:
    """Return `text` if it is a legal name. Raises UsageProblem, whose message tells the rule that `text` breaks.

    A legal name has parts of the form `[A-Za-z0-9][A-Za-z0-9._-]*`, joined by `/`, and at most MAX_NAME_BYTES bytes. No
    part ends in `.lock` (as in git).
    """
    broken = _broken_rule(text)
    if broken:
        raise UsageProblem(
            "use the name", repr(text), broken, "use letters, digits, '.', '_' and '-', in parts joined by '/'"
        )
    return text


def parse_kind(text: str) -> str:
    """Return `text` if it may be the kind of an attached layer: a name of one part. Raises UsageProblem."""
    parse_name(text)
    if "/" in text or text in OWN_LAYERS:
        said = "it has a slash in it" if "/" in text else "a capture has a layer of this kind by itself"
        raise UsageProblem("attach", repr(text), said, "use another kind, such as model, cache, trace or effects")
    return text


def parse_attached(texts: "list[str]") -> "dict[str, str]":
    """By kind, the paths of what is to be attached, from `KIND=PATH` each. Raises UsageProblem."""
    found: dict[str, str] = {}
    for text in texts:
        kind, _, path = text.partition("=")
        if not path or parse_kind(kind) in found:
            said = "this kind is named twice" if path else "it is not KIND=PATH"
            raise UsageProblem("understand", repr(text), said, "write, for instance, trace=run.jsonl")
        found[kind] = path
    return found


def is_name(text: str) -> bool:
    """True if `text` is a legal name, as `parse_name` says."""
    return not _broken_rule(text)


def _broken_rule(text: str) -> str:
    if not text:
        return "a name may not be empty"
    if len(text.encode(errors="surrogateescape")) > MAX_NAME_BYTES:
        return f"a name has at most {MAX_NAME_BYTES} bytes"
    return next(filter(None, map(_broken_rule_of_part, text.split("/"))), "")


def _broken_rule_of_part(part: str) -> str:
    if not part:
        return "a part between slashes is empty"
    if part[0] not in _FIRST:
        return "each part starts with a letter or a digit"
    if not _REST.issuperset(part):
        return "only letters, digits, '.', '_' and '-' are allowed"
    return "a part may not end in '.lock'" if part.endswith(".lock") else ""


def in_order(name: str) -> str:
    """The key to sort names by: numbers in them count by their value (`try-2` before `try-10`), all else by character.
    No two names have the same key.
    """
    key, digits = "", ""
    for character in f"{name}\0":
        if "0" <= character <= "9":
            digits += character
            continue
        if digits:
            number = digits.lstrip("0")
            key += f"{len(number):03}{number}"
            digits = ""
        key += character
    return key + name


def excludes(name: str, other: str) -> bool:
    """True if the two names cannot exist at once: `a` excludes `a/b`, as a file excludes a folder of the same name."""
    return name.startswith(f"{other}/") or other.startswith(f"{name}/")


def meant(word: str, known: "Iterable[str]") -> str:
    """What is to be added to a message about `word`, which is none of the `known` words: those that are like it, a few
    letters away. Not by `difflib`, which loads `re`.
    """
    most = max(1, len(word) // _LETTERS_A_MISTAKE)
    near = [(_distance(word, one), one) for one in known if abs(len(one) - len(word)) <= most]
    found = [one for distance, one in sorted(near) if distance <= most][:_MOST_MEANT]
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def _distance(one: str, other: str) -> int:
    """How many letters must be added, removed, changed or exchanged with the next one (optimal string alignment)."""
    older: list[int] = []
    last: list[int] = [*range(len(other) + 1)]
    for place, letter in enumerate(one, 1):
        row = [place]
        for at, wanted in enumerate(other, 1):
            best = min(last[at] + 1, row[-1] + 1, last[at - 1] + (letter != wanted))
            if place > 1 and at > 1 and letter == other[at - 2] and wanted == one[place - 2]:
                best = min(best, older[at - 2] + 1)
            row.append(best)
        older, last = last, row
    return last[-1]
