"""The fields of the values that `--json` prints do not depend on what the verb finds."""

import json

import pytest

from tests.collecting import collecting
from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]


@pytest.mark.soak(part="matrix")
def test_a_verb_always_prints_the_same_fields(home: Home, branch: str) -> None:
    """`{0}`: a live branch, `{0}-p`: a parked one, `{0}-e`: one that ended with its files. Each line ends with what it
    shows; `in:` runs it inside of the live session.
    """
    verbs = {
        "show": ("show {0}",),  # nothing is captured yet
        "exec": ("exec -b {0} --json -- true", "exec -b {0} --json -- false", r"exec -b {0} --json -- printf \377"),
        "exec that fails": (
            "exec -b nosuch --json -- true",
            "exec --json --nosuch",
            "exec -b {0} --timeout 0.1 --json -- sleep 1000",
        ),
        "run": (
            "run -b {0} --json -- true",
            r"run -b {0} --json -- printf \377",
            "run -b {0} --json -- /nosuch",
            "run --json --nosuch",
        ),
        "checkpoint": (
            "checkpoint {0}-c -b {0}",
            "checkpoint -b {0}",
            "checkpoint {0}-d -b {0} --anew -m note",
            "in:checkpoint {0}-i",
        ),
        "more of show": (
            "show {0}",
            "show {0}-c",
            "show {0}-p",
            "show {0}-p-c",
            "show {0}-e",
            "in:show {0}",
            "in:show {0}-c",
        ),
        "list": ("list",),
        "ps": ("ps --all", "in:ps"),
        "log": ("log --all", "log {0}-e", "in:log"),
        "op log": ("op log", "in:op log"),
        "restore": (
            "restore {0}-c",
            "restore {0}-c --only files",
            "restore {0}-c --only shell",
            "restore {0}-c --new {0}-n",
            "restore {0}-e",
        ),
        "fork": ("fork {0}-c -n 1", "fork {0}-c -n 1 --prefix {0}-f --json -- false", "in:fork {0}-c {0}-g"),
    }
    same = {"exec that fails": "exec", "more of show": "show"}
    found: dict[str, set[frozenset[str]]] = {}
    parked, ended = f"{branch}-p", f"{branch}-e"
    for end in (("checkpoint", f"{parked}-c", "--park", "-b", parked), ("stop", "--files", ended)):
        home.must("shell", end[-1], "-d")
        home.must(*end)
    with collecting() as row:
        for verb, lines in verbs.items():
            for line in lines:
                value = _printed(home, branch, line.format(branch))
                rows = value if isinstance(value, list) else [value]
                assert rows
                with row(line):
                    known = found.setdefault(same.get(verb, verb), set())
                    known.update(map(frozenset, rows))
                    assert len(known) == 1, sorted(set.union(*map(set, known)) - set.intersection(*map(set, known)))
    for name in ("e", "n", "c-1", "f-1", "g"):
        home.must("stop", f"{branch}-{name}", "--discard")


def _printed(home: Home, branch: str, line: str) -> object:
    inside = line.startswith("in:")
    words = line.removeprefix("in:").split()
    words += [] if "--json" in words else ["--json"]
    done = (
        home.cli("exec", "-b", branch, "--", " ".join(["waypoint", *words, "2>/dev/null"]))
        if inside
        else home.cli(*words)
    )
    return json.loads(done.stdout)
