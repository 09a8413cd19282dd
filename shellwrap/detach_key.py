"""The key that leaves a session: `Ctrl-]`, then `d`."""

import re

# Also as a terminal writes them on which a program has switched on another keyboard protocol: kitty's, or xterm's
# modifyOtherKeys. Such a sequence is only recognised whole: waiting for the rest of it would delay a lone Escape.
_PREFIX = re.compile(rb"\x1d|\x1b\[93;5(?::1)?u|\x1b\[27;5;93~")
_DETACH = re.compile(rb"d|\x1b\[100(?:;1(?::1)?)?u")


class DetachKey:
    """Takes the key out of a stream of typed bytes.

    The prefix twice is the prefix once; before any other key it is passed on.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """What of `typed` is for the session, and whether the key was struck. What is typed behind it is dropped."""
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
