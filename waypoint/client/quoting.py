"""From words to the text of a command line."""

import os

from waypoint.model.errors import UsageProblem

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-")


def quote(word: str) -> str:
    """`word` so that a shell (bash, zsh) reads it as this one word. Bytes that are no text go as $'\\xNN'."""
    if word and _PLAIN.issuperset(word):
        return word
    if any(0xDC80 <= ord(character) <= 0xDCFF for character in word):
        return "$'" + "".join(chr(b) if chr(b) in _PLAIN else f"\\x{b:02x}" for b in os.fsencode(word)) + "'"
    return "'" + word.replace("'", "'\\''") + "'"


def as_json_text(text: str) -> str:
    """`text`, if it can travel in JSON: arguments that are no UTF-8 reach Python with surrogates in them.

    Raises UsageProblem if it cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        on = f"the text at character {error.start}"
        raise UsageProblem("send", on, "it is not UTF-8", "with exec, give the command as several words") from error
    return text


def exec_text(words: "list[str] | tuple[str, ...]") -> str:
    """The shell text of `waypoint exec -- WORDS`: one word is text itself, several are words that are quoted."""
    return as_json_text(words[0] if len(words) == 1 else " ".join(map(quote, words)))
