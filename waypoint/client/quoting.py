"""Making shell text from words."""

import os

from waypoint.model.errors import UsageProblem

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-")


def quote(word: str) -> str:
    """`word`, quoted so that bash and zsh read it as one word. Bytes that are not UTF-8 are written as $'\\xNN'."""
    if word and _PLAIN.issuperset(word):
        return word
    if any(0xDC80 <= ord(character) <= 0xDCFF for character in word):
        return "$'" + "".join(chr(b) if chr(b) in _PLAIN else f"\\x{b:02x}" for b in os.fsencode(word)) + "'"
    return "'" + word.replace("'", "'\\''") + "'"


def as_json_text(text: str) -> str:
    """Return `text`; raise UsageProblem if JSON cannot encode it. Python turns argument bytes that are not UTF-8 into
    surrogates, which JSON cannot encode.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        on = f"the text at character {error.start}"
        step = (
            "write it in UTF-8: instead of a file, name its folder; 'waypoint exec' takes other bytes in several words"
        )
        raise UsageProblem("send", on, "it is not UTF-8", step) from error
    return text


def exec_text(words: "list[str] | tuple[str, ...]") -> str:
    """The shell text of `waypoint exec -- WORDS`: a single word is the text itself, several words are quoted. Raises
    UsageProblem if a single word is not UTF-8.
    """
    return as_json_text(words[0] if len(words) == 1 else " ".join(map(quote, words)))
