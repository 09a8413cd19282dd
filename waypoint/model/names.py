"""The rules for names of branches and checkpoints, which share one name space.

This module imports nothing that is slow to load: the command line's fast path checks names before anything else.
"""

from waypoint.model.errors import UsageProblem

MAX_NAME_BYTES = 100
DEFAULT_BRANCH = "main"  # the branch that is used if none is given
MACHINE = "machine"  # stands for the machine's own files where states are compared
# Most of the rules of a name.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*(?![\s\S])"
_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_REST = _FIRST | frozenset("._-")


def parse_name(text: str) -> str:
    """Return `text` if it is a legal name. Raises UsageProblem with the rule that `text` breaks.

    A legal name has parts of the form `[A-Za-z0-9][A-Za-z0-9._-]*`, joined by `/`, and at most MAX_NAME_BYTES bytes. No
    part ends in `.lock` (as in git).
    """
    broken = _broken_rule(text)
    if broken:
        raise UsageProblem("use the name", repr(text), broken, "choose another name, such as fix-1 or try/fix-1")
    return text


def is_name(text: str) -> bool:
    """Return True if `text` is a legal name, as `parse_name` says."""
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
        return "only letters, digits, '.', '_' and '-' are allowed, in parts joined by '/'"
    return "a part may not end in '.lock'" if part.endswith(".lock") else ""


def in_order(name: str) -> str:
    """Return the sort key of a name: numbers are compared by value (`try-2` before `try-10`), other characters one by
    one. No two names have the same key.
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
    """Return True if two branches cannot have these names: `a` excludes `a/b`, as a file excludes a folder of the same
    name.
    """
    return name.startswith(f"{other}/") or other.startswith(f"{name}/")
