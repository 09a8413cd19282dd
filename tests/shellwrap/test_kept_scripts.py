"""The scripts that a session's processes have open while it is captured.

CRIU refuses to restore a file whose size has changed, and a shell goes on to read its script at the byte where it was.
So a capture of an earlier Waypoint is restored only if these scripts keep the place of every byte of code.
"""

import hashlib
import re
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "shellwrap"
KEPT = {
    "first.sh": (1071, "4bd3157f95b513af"),
    "init.sh": (896, "41cf3f63acda86c5"),
    "wrapper.sh": (749, "f9d47feda49c5d7e"),
    # Before, its program's line had no `exec`. A shell that waits in that line has read it, and goes on behind it.
    "run.sh": (467, "b83350ca108f63a0"),
    "child.sh": (995, "70ef74723fbbf6fe"),
    "waypoint.sh": (1112, "d49cec7a51839eaf"),
    "ask.sh": (1092, "6e53580abcb05f4e"),
    "request.sh": (1824, "453a87e6ee8bf997"),
    "asking.sh": (2318, "07460b50bab3e051"),
}


def blank_comments(script: bytes) -> bytes:
    """`script` with a space for each byte of a comment."""
    return re.sub(rb"(?m)(^|(?<= ))#(?!!).*", lambda comment: b" " * len(comment[0]), script)


@pytest.mark.parametrize("name", KEPT)
def test_a_script_that_captures_have_open_keeps_its_size_and_its_code(name: str) -> None:
    script = (SCRIPTS / name).read_bytes()
    code = blank_comments(script).replace(b"\n", b" ")
    found = (len(script), hashlib.sha256(code).hexdigest()[:16])
    said = "captures of earlier versions have it open: give the changed script a new name, and keep this one in the kit"
    assert found == KEPT[name], said
