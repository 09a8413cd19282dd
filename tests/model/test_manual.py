"""The manual pages contain the table of verbs, and man reads them without warnings."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.places import ROOT
from waypoint.model.verbs import Argument, Option, Verb, manual
from waypoint.model.verbs.table import WAYPOINT, every_verb, first_sentence
from waypoint.setup import criu_build

VERBS = every_verb()


def shown(page: str, folder: Path) -> str:
    """The page as man prints it, with unbroken lines. Fails if man prints a warning."""
    path = folder / "page.1"
    path.write_text(page)
    env = {"PATH": "/usr/bin:/bin", "MANWIDTH": "2000", "LC_ALL": "C.UTF-8", "MANROFFOPT": "-ww"}
    done = subprocess.run(["man", "-l", "--warnings=w", str(path)], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return re.sub(" +", " ", done.stdout)


def test_every_verb_has_a_page_and_there_are_no_others() -> None:
    names = {f"waypoint-{verb.name.replace(' ', '-')}.1" for verb in VERBS}
    groups = {
        "waypoint-base.1",
        "waypoint-branch.1",
        "waypoint-op.1",
        "waypoint-daemon.1",
        "waypoint-layer.1",
        "waypoint-profile.1",
    }
    assert set(manual.pages()) == {"waypoint.1", *names, *groups}


@pytest.mark.requires("man")
def test_man_prints_the_texts_of_the_table(tmp_path: Path) -> None:
    missing = []
    for verb in VERBS:
        name = f"waypoint-{verb.name.replace(' ', '-')}"
        text = shown(manual.pages()[f"{name}.1"], tmp_path)
        expected = [f"{verb.command} {verb.usage}", f"{name} - {first_sentence(verb).rstrip('.')}\n", verb.epilog]
        for option in verb.options:
            expected += [*option.flags, option.help, option.metavar]
        expected += [" ".join(paragraph.split()) for paragraph in verb.help.split("\n\n")]
        missing += [(verb.name, words) for words in expected if words not in text]
    assert not missing, missing


@pytest.mark.requires("man")
def test_the_overview_names_every_verb(tmp_path: Path) -> None:
    text = shown(manual.pages()["waypoint.1"], tmp_path)
    for verb in VERBS:
        assert f"waypoint-{verb.name.replace(' ', '-')}(1)" in text
        assert first_sentence(verb) in text


@pytest.mark.requires("man")
def test_no_text_of_a_page_is_a_man_macro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ".so /etc/passwd \\n[odd] -x 'a' \"b\" ^ ~ `c`"
    verb = Verb(
        "odd", (Option(("--odd",), "text", odd, odd),), f"First.\n\n{odd}", odd, arguments=(Argument("o", odd),)
    )
    monkeypatch.setattr(WAYPOINT, "members", (verb,))
    assert shown(manual.pages()["waypoint-odd.1"], tmp_path).count(odd) == 5


@pytest.mark.soak(part="setup")
@pytest.mark.requires("network")
def test_the_wheel_contains_the_pages_made_from_its_table_and_the_patches_of_criu(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    for path in subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "*.py", "pyproject.toml", "*.patch"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes((ROOT / path).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)  # pip builds a wheel
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {
            Path(name).name: archive.read(name).decode()
            for name in archive.namelist()
            if "/data/share/man/man1/" in name
        }
        patches = [name for name in archive.namelist() if name.startswith("waypoint/setup/criu_source/patches/")]
    assert found == manual.pages()
    assert {Path(name).name for name in patches} == {patch.name for patch in criu_build.patches()}
