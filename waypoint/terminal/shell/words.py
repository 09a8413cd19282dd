"""Quoting for bash and zsh, and pieces of the shell code that Waypoint lets them run."""

DONE = "waypoint: all of it"
"""The last line that a script prints; if it is missing, the shell has not completed the script."""
FIND = "{{ __wp_file {0}||__wp_p=$__wp_d/{0};}} 2>/dev/null"
"""Sets __wp_p to the path of the file {0}. The function __wp_file is missing in the hooks of earlier versions."""
READ_BACK = FIND.format("back") + "; IFS= \\builtin read -r -d '' __wp_t <\"$__wp_p\" || \\builtin :"
"""Reads the file `back` of the run folder into __wp_t."""


def quoted(text: bytes) -> bytes:
    """Quote `text`, which must not contain a NUL, as one word for bash and zsh."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def readable(name: bytes) -> str:
    """Return `name` as a text for a message; bytes that are not UTF-8 are escaped."""
    return name.decode(errors="backslashreplace")
