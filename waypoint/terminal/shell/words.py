"""Quoting for bash and zsh, and the word by which a script tells that it has come to its end."""

DONE = "waypoint: all of it"


def quoted(text: bytes) -> bytes:
    """`text` as one word of bash or zsh, whatever its bytes; it cannot contain a NUL."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def readable(name: bytes) -> str:
    """`name` for a message."""
    return name.decode(errors="backslashreplace")
