"""Quoting for bash and zsh, and the words of Waypoint's own in what these execute."""

DONE = "waypoint: all of it"
"""By this a script tells that it has come to its end."""
FIND = "{{ __wp_file {0}||__wp_p=$__wp_d/{0};}} 2>/dev/null"
"""Sets __wp_p to the path of the file {0}. The hooks of earlier versions have no __wp_file."""
READ_BACK = FIND.format("back") + "; IFS= \\builtin read -r -d '' __wp_t <\"$__wp_p\" || \\builtin :"
"""Reads the file `back` of the run folder into __wp_t."""


def quoted(text: bytes) -> bytes:
    """`text` as one word of bash or zsh, whatever its bytes; it cannot contain a NUL."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def readable(name: bytes) -> str:
    """`name` for a message."""
    return name.decode(errors="backslashreplace")
