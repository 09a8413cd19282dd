"""Recognising the detach key, with which a person leaves a session: `Ctrl-]`, then `d`."""

import re

# The second and third form is what a terminal sends when a program has switched on kitty's keyboard protocol or xterm's
# modifyOtherKeys. Such a sequence is recognised only if one read returns it whole: waiting for its rest would delay a
# lone Escape.
_PREFIX = re.compile(rb"\x1d|\x1b\[93;5(?::1)?u|\x1b\[27;5;93~")
_DETACH = re.compile(rb"d|\x1b\[100(?:;1(?::1)?)?u")


class DetachKey:
    """Takes the detach key out of a stream of typed bytes.

    The prefix `Ctrl-]` typed twice is passed on once. A prefix before another key than `d` is passed on with that key.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return the bytes of `typed` that are for the session, and whether the detach key was struck.

        Bytes after the detach key are dropped.
        """
        passed = bytearray()
        place = 0
        while place < len(typed):
            if self._held:
                again = _PREFIX.match(typed, place)
                if again is None and _DETACH.match(typed, place):
                    return bytes(passed), True
                passed += self._held
                place = again.end() if again else place
                self._held = b""
                continue
            prefix = _PREFIX.search(typed, place)
            if prefix is None:
                passed += typed[place:]
                break
            passed += typed[place : prefix.start()]
            self._held = prefix.group()
            place = prefix.end()
        return bytes(passed), False
