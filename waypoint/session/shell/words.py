"""Words of a shell's language."""

DONE = "waypoint: all of it"


def quoted(text: bytes) -> bytes:
    """As one word, for bash and zsh alike, whatever its bytes (a NUL cannot be in it)."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def told(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
