"""The scripts that a session's processes have open while it is captured.

CRIU refuses to restore a file whose size has changed, and a shell continues to read its script at the
same offset. So a capture of an earlier Waypoint can be restored only if all code in these scripts keeps its offset.
"""

import hashlib
import re
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "shellwrap"
KEPT = {
    "first.sh": (1217, "6e899e44a491678f"),
    "init.sh": (896, "41cf3f63acda86c5"),
    "wrapper.sh": (749, "f9d47feda49c5d7e"),
    # Earlier, the line that runs the program had no `exec`. A shell that waits in that line continues after it.
    "run.sh": (467, "b83350ca108f63a0"),
    "child.sh": (995, "70ef74723fbbf6fe"),
    "waypoint.sh": (1112, "d49cec7a51839eaf"),
    "ask.sh": (1092, "6e53580abcb05f4e"),
    "request.sh": (1824, "453a87e6ee8bf997"),
    "asking.sh": (2318, "07460b50bab3e051"),
}


def blank_comments(script: bytes) -> bytes:
    """Return `script` with a space for each byte of a comment."""
    return re.sub(rb"(?m)(^|(?<= ))#(?!!).*", lambda comment: b" " * len(comment[0]), script)


@pytest.mark.parametrize("name", KEPT)
def test_a_script_that_captures_have_open_keeps_its_size_and_its_code(name: str) -> None:
    script = (SCRIPTS / name).read_bytes()
    code = blank_comments(script).replace(b"\n", b" ")
    found = (len(script), hashlib.sha256(code).hexdigest()[:16])
    said = "captures of earlier versions have it open: keep this script, and give the changed one a new name"
    assert found == KEPT[name], said
