"""Quoting for bash and zsh, and pieces of the shell code that Waypoint lets them run."""

import re

_ESCAPED = re.compile(rb"[\0\x01\x7f]")
_BACKSLASHED = re.compile(rb"['\\]")
DONE = "waypoint: all of it"
"""The last line that a script prints; if it is missing, the shell has not completed the script."""
FIND = "{{ __wp_file {0}||__wp_p=$__wp_d/{0};}} 2>/dev/null"
"""Sets __wp_p to the path of the file {0}. The function __wp_file is missing in the hooks of earlier versions."""
READ_BACK = FIND.format("back") + "; IFS= \\builtin read -r -d '' __wp_t <\"$__wp_p\" || \\builtin :"
"""Reads the file `back` of the run folder into __wp_t."""


def quoted(text: bytes) -> bytes:
    """Quote `text` as one word for bash and zsh. The bytes 01 and 7f are escaped, since bash loses some of them in
    plain quotes, and NUL is escaped, which only zsh can have in a value.
    """
    if _ESCAPED.search(text):
        return b"$'" + _ESCAPED.sub(lambda char: b"\\%03o" % ord(char[0]), _BACKSLASHED.sub(rb"\\\g<0>", text)) + b"'"
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def readable(name: bytes) -> str:
    """Return `name` as a text for a message; bytes that are not UTF-8 are escaped."""
    return name.decode(errors="backslashreplace")
