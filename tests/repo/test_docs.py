"""Commands, dependencies and links in the documents exist, and every command is in the documents."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.repo import tree
from tests.waiting import PATIENCE_S
from waypoint.model.conditions import CONDITIONS, ERROR_CODES
from waypoint.model.errors import BY_CODE
from waypoint.processes.criu.cause_table import CAUSES

MAIN = ROOT / "waypoint/cli/main.py"


def pages() -> dict[Path, str]:
    return {path: tree.text(path) for path in tree.files() if path.suffix == ".md"}


def shown_lines(page: str) -> Iterator[str]:
    """Lines of code blocks (with continuation lines joined), and code within the text."""
    for block in re.findall(r"^```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    outside = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", outside)


def uses(line: str, program: str) -> Iterator[list[str]]:
    """The words after each `program` in command position, up to ` -- ` or the end of the command."""
    command = re.sub(r"\s+#.*", "", line)
    for part in re.split(r"[|;&]+|\$\(", command):
        match = re.match(rf"\s*(?:\$ |# )?(?:sudo )?{re.escape(program)}(?:\s+(.*))?$", part)
        if match:
            yield (match[1] or "").split(" -- ")[0].split()


@functools.cache
def help_of(*verb: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(MAIN), *verb, "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return done.stdout


@pytest.fixture(scope="module")
def verbs() -> set[str]:
    """The verbs that `waypoint --help` lists."""
    _, _, listing = help_of().partition("ommands:\n")
    found = set(re.findall(r"^ {2,4}([a-z]+)\b", listing, re.MULTILINE))
    assert {"shell", "exec", "ps"} <= found
    return found


def test_every_verb_of_the_command_line_is_in_the_documents(verbs: set[str]) -> None:
    mentioned = {word for page in pages().values() for word in re.findall(r"`?waypoint ([a-z]+)\b", page)}
    assert verbs - mentioned == set()


def test_every_command_that_the_documents_show_exists_with_its_options(verbs: set[str]) -> None:
    wrong = []
    for path, page in pages().items():
        for words in (words for line in shown_lines(page) for words in uses(line, "waypoint")):
            options = {word.partition("=")[0] for word in words if word.startswith("-")}
            verb = next((word for word in words if not word.startswith("-")), None)
            if verb and verb.islower() and verb not in verbs:
                wrong.append(f"{path}: waypoint {verb}")
            elif verb and verb.islower():
                known = help_of(verb)
                wrong += [f"{path}: waypoint {verb} {word}" for word in options if word not in known]
    assert wrong == []


def dev_verbs() -> set[str]:
    usage = subprocess.run([str(ROOT / "dev"), "help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^ {2}([a-z]+) ", usage, re.MULTILINE))


def test_every_dev_command_that_the_documents_show_exists() -> None:
    shown = {
        words[0] for page in pages().values() for line in shown_lines(page) for words in uses(line, "./dev") if words
    }
    assert {verb for verb in shown if verb.islower()} == dev_verbs()


def test_the_readme_shows_the_demo_and_the_test_command() -> None:
    shown = [line.strip() for line in shown_lines(tree.text(Path("README.md")))]
    assert {"sudo ./dev demo", "sudo ./dev test"} <= {re.sub(r"\s+#.*", "", line) for line in shown}


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads(tree.text(Path("pyproject.toml")))
    listed = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(name for extra in project["project"]["optional-dependencies"].values() for name in extra),
    ]
    needed = {re.split(r"[<>=!~\[ ;]", requirement)[0] for requirement in listed}
    explained = set(re.findall(r"\*\*`([\w-]+)`\*\*", tree.text(Path("docs/dependencies.md"))))
    assert explained == needed


def test_every_debian_package_that_dev_installs_is_named() -> None:
    programs = next(
        ast.literal_eval(node.value)
        for node in tree.parsed(Path("dev")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROGRAMS"
    )
    page = tree.text(Path("docs/dependencies.md")).partition("## Of the system")[2]
    assert {package for package in programs.values() if not re.search(rf"\b{package}\b", page)} == set()


def test_the_page_of_conditions_is_that_of_the_tables() -> None:
    printed = subprocess.run(
        [sys.executable, "docs/conditions.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert tree.text(Path("docs/conditions.md")) == printed.stdout, (
        "next: python docs/conditions.py > docs/conditions.md"
    )


def test_every_code_of_a_condition_or_error_is_in_the_tables() -> None:
    """Codes are the first argument of `degradation`, and the argument `code` of errors."""
    given: dict[str, set[str]] = {"degradation": set(), "error": set()}
    for path in tree.python_files("waypoint"):
        for node in ast.walk(tree.parsed(path)):
            if isinstance(node, ast.Call):
                is_degradation = isinstance(node.func, ast.Name) and node.func.id == "degradation"
                values = node.args[:1] if is_degradation else [one.value for one in node.keywords if one.arg == "code"]
                given["degradation" if is_degradation else "error"].update(
                    str(one.value) for one in values if isinstance(one, ast.Constant)
                )
    assert given["degradation"] <= CONDITIONS.keys()
    assert given["error"] <= ERROR_CODES.keys() | {f"criu-{cause.name}" for cause in CAUSES}
    assert {code: ERROR_CODES[code].exit for code in BY_CODE} == {
        code: kind.exit_code for code, kind in BY_CODE.items()
    }


def test_links_between_documents_lead_somewhere() -> None:
    dead = [
        f"{path}: {target}"
        for path, page in pages().items()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page)
        if not (ROOT / path.parent / target).exists()
    ]
    assert dead == []
