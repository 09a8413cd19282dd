"""Quoting for bash and zsh, and the words of Waypoint's own in what these execute."""

DONE = "waypoint: all of it"
"""By this a script tells that it has come to its end."""
READ_BACK = "IFS= \\builtin read -r -d '' __wp_t <\"$__wp_d/back\" || \\builtin :"
"""Reads the file `back` of the run folder into __wp_t."""


def quoted(text: bytes) -> bytes:
    """`text` as one word of bash or zsh, whatever its bytes; it cannot contain a NUL."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def readable(name: bytes) -> str:
    """`name` for a message."""
    return name.decode(errors="backslashreplace")
