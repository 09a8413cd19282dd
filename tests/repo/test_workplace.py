"""No file names a path of the machine it was written on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.repo import tree

# The top level of the file system hierarchy standard, and what Linux mounts there.
STANDARD = {
    *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt", "proc", "root", "run"),
    *("sbin", "srv", "sys", "tmp", "usr", "var"),
}

OURS = {
    "v1": "the control interface's requests",
    "org": "names of objects on D-Bus",
    "some": "an example",
}
"""First parts of texts that look like a path, but are not paths."""

# An absolute path of two parts or more, after a quote, a blank, a bracket, a comma, `=` or at the start.
_PATH = re.compile(r"(?:^|(?<=[\s\"'`(\[=:,]))/(?P<top>[A-Za-z0-9][A-Za-z0-9._-]*)/[A-Za-z0-9._-]")


def foreign_paths(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        for match in _PATH.finditer(line):
            if match["top"] not in STANDARD and match["top"] not in OURS:
                yield number, match[0]


def own_places() -> list[str]:
    """The checkout's own path, and the folder around it unless every machine has that folder."""
    around = ROOT.parent
    common = [Path.home(), *map(Path, ("/", "/home", "/tmp", "/var/tmp", "/opt", "/srv", "/usr/src", "/usr/local"))]
    return [f"{ROOT}/", *([f"{around}/"] if around not in common else [])]


def texts() -> Iterator[tuple[Path, str]]:
    for path in tree.files():
        if path.name != "LICENSE":
            yield path, tree.text(path)


def test_no_path_of_another_machine_is_named() -> None:
    """Except in tests, which may invent paths."""
    outside = [(path, text) for path, text in texts() if path.parts[0] != "tests"]
    assert [f"{path}:{number}: {name}" for path, text in outside for number, name in foreign_paths(text)] == []


def test_no_file_names_the_folder_this_checkout_lies_in() -> None:
    assert [f"{path}: {place}" for path, text in texts() for place in own_places() if _names(text, place)] == []


def _names(text: str, place: str) -> bool:
    """Whether the text contains the path `place`, not only as the end of a longer path."""
    return re.search(rf"(?<![\w.}}-]){re.escape(place)}", text) is not None


ELSEWHERE = "/" + "elsewhere/x"


@pytest.mark.parametrize("text", [f"see {ELSEWHERE}", f'x = "{ELSEWHERE}"', f"({ELSEWHERE})", f"PATH={ELSEWHERE}"])
def test_a_foreign_path_is_found(text: str) -> None:
    assert len(list(foreign_paths(text))) == 1


@pytest.mark.parametrize(
    "text", ["/usr/bin/env", "and/or/not", "GET /v1/status", "https://a.b/c/d", "f'{root}/part/x'", "a / b / c"]
)
def test_other_texts_with_slashes_are_not_found(text: str) -> None:
    assert list(foreign_paths(text)) == []
