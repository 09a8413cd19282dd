"""Workload profiles: the files that there are, the schema, whose files count, and which process gets which."""

import contextlib
import os
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.workloads.rows import WORKLOADS
from waypoint.model.errors import StoreDamaged
from waypoint.processes.profiles.known import MOST, KnownProfiles, Named, Profiles, read_ours
from waypoint.processes.profiles.profile import parse_profile

OURS = read_ours()
WANTED = {
    *("base", "shell", "python", "node", "claude", "codex", "postgres", "mariadb", "redis", "sqlite", "vim", "pagers"),
    *("tmux", "jupyter", "git", "ssh", "browsers", "sandboxes", "debuggers", "outside", "jvm"),
}
GOOD = """
reason = "because"
test = "tests/x.py::test_y"
[match]
programs = ["x"]
[env]
A = "1"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a home's own profiles."""
    made = tmp_path / "profiles"
    made.mkdir(mode=0o755)
    return made


def put(folder: Path, name: str, text: str = GOOD) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def of(*programs: str, more: str = "") -> str:
    return f'reason = "because"\n{more}\n[match]\nprograms = {list(programs)!r}\n'


def test_there_is_one_for_each_kind_of_program_that_is_known_to_need_one() -> None:
    assert WANTED - {one.name for one in OURS} == set()


@pytest.mark.parametrize("one", OURS, ids=lambda one: one.name)
def test_each_of_ours_names_a_test_that_exists(one: Named) -> None:
    file, _, name = one.profile.test.partition("::")
    test, _, row = name.rstrip("]").partition("[")
    assert f"def {test}(" in (ROOT / file).read_text()
    assert not row or row in {workload.name for workload in WORKLOADS}


def test_a_session_s_environment_is_that_of_all_profiles(folder: Path) -> None:
    known = KnownProfiles(folder.parent)
    assert known.now().environment == {"UV_USE_IO_URING": "0"}
    put(folder, "a", GOOD)
    put(folder, "b", GOOD.replace("A =", "UV_USE_IO_URING ="))
    assert known.now().environment == {"UV_USE_IO_URING": "1", "A": "1"}


def test_two_profiles_may_agree_but_not_contradict(folder: Path, tmp_path: Path) -> None:
    put(folder, "a")
    put(folder, "b")
    known = KnownProfiles(folder.parent)
    assert (known.now().problems, known.now().environment["A"]) == ((), "1")
    put(folder, "b", GOOD.replace('"1"', '"2"'))
    (problem,) = known.now().problems
    assert (problem.on, problem.said) == (f"{folder}/b.toml", "a gives A another value")
    assert known.now().environment["A"] == "1"
    ours = tmp_path / "ours"
    ours.mkdir()
    put(ours, "a")
    put(ours, "b", GOOD.replace('"1"', '"2"'))
    with pytest.raises(StoreDamaged, match="a gives A another value"):
        read_ours(ours)


BAD = [
    (GOOD.replace("reason", "raison"), "raison"),
    (GOOD.replace('"because"', '""'), "reason"),
    (GOOD.replace('["x"]', "[]"), "programs"),
    (GOOD.replace('["x"]', '"x"'), "programs"),
    (GOOD.replace('["x"]', '["/bin/x"]'), "programs"),
    (GOOD.replace('"1"', "1"), "env"),
    (GOOD.replace("A =", '"A B" ='), "env"),
    (GOOD.replace("A =", "WAYPOINT_HOME ="), "env"),
    (GOOD.replace("[match]", "[matches]"), "match"),
    (GOOD + "[again]\nunaskd = true", "unaskd"),
    (GOOD + '[again]\nnever = "no"\nunasked = true', "never"),
    (GOOD + '[again]\nkeep = ["-x"]', "keep"),
    (GOOD + '[again]\nunless = ["-x"]', "unless"),
    (GOOD + '[remedies]\nno-cause = "x"', "no-cause"),
    (GOOD + '[remedies]\ndisk-full = "x"', "disk-full"),
    (GOOD + "[criu]\ndeleted_files_mib = 0", "deleted_files_mib"),
    ("before = []\n" + GOOD, "before"),
    ("x = " + "[" * 5000, "nested too deeply"),
    (GOOD + "reason = [", "Invalid value"),
    ("a." * 4000 + "a = 1", "more than one dot"),
    ("[" + "a." * 4000 + "a]", "more than one dot"),
    ("[again]\na . 'b.c' .\t\"d\" = 1", "more than one dot"),
    ('x = [""""""", { a.a.a = 1 }]', "more than one dot"),
    ("x = ['''a\\''''', { a.a.a = 1 }]", "more than one dot"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_a_file_that_breaks_the_schema_does_not_count_and_is_named(text: str, words: str, folder: Path) -> None:
    put(folder, "good", of("good"))
    path = put(folder, "bad", text)
    now = KnownProfiles(folder.parent).now()
    (problem,) = now.problems
    assert (problem.on, words in problem.said, problem.next_step.startswith("mend or remove it")) == (
        str(path),
        True,
        True,
    )
    assert [one.name for one in now.all if one.path.startswith(str(folder))] == ["good"]
    with pytest.raises(StoreDamaged, match="install Waypoint again") as caught:
        read_ours(folder)
    assert caught.value.on == str(path)


def test_a_text_that_is_longer_than_any_profile_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="it is longer than 8192 characters"):
        parse_profile("a." * 30_000 + "a = 1")


def test_dots_in_words_are_none_of_a_key() -> None:
    text = '''# see a.b.c.d "x
test = 'a.b.c.d'
reason = """
[a.b.c] = \\"""" # "a.b.c.d"
match = { programs = ['x.y.z', "\\"x.y.z"], runs_scripts = false }
again.never = "a.b.c"
'''
    found = parse_profile(text)
    assert (found.test, found.match.programs, found.again.never) == ("a.b.c.d", ["x.y.z", '"x.y.z'], "a.b.c")


@pytest.mark.privileged
@pytest.mark.requires("root")
@pytest.mark.parametrize(
    "spoil", ["mode", "owner", "link", "folder-mode", "folder-owner", "folder-link", "fifo", "name"]
)
def test_a_file_that_others_may_write_to_decides_nothing(folder: Path, spoil: str) -> None:
    path = put(folder, "x")
    known = KnownProfiles(folder.parent)
    assert known.now().environment["A"] == "1"
    match spoil:
        case "mode":
            path.chmod(0o664)
        case "owner":
            os.chown(path, 1000, 0)
        case "link":
            path.rename(folder / "elsewhere")
            path.symlink_to(folder / "elsewhere")
        case "fifo":
            path.unlink()
            os.mkfifo(path, 0o600)
        case "name":
            path.rename(folder / "X y.toml")
        case "folder-mode":
            folder.chmod(0o777)
        case "folder-owner":
            os.chown(folder, 1000, 0)
        case _:
            folder.rename(folder.parent / "elsewhere")
            folder.symlink_to(folder.parent / "elsewhere")
    now = known.now()
    assert "A" not in now.environment
    assert len(now.problems) == 1


def test_the_folder_is_read_again_only_when_it_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownProfiles(folder.parent)
    path = put(folder, "x")
    first = known.now()
    assert known.now() is first
    path.write_text(GOOD.replace('"1"', '"3"'))
    assert known.now().environment["A"] == "3"
    path.unlink()
    assert "A" not in known.now().environment
    folder.rmdir()
    assert "A" not in known.now().environment


def test_a_file_that_goes_while_the_folder_is_looked_at_takes_no_other_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, "x")
    real = os.scandir

    def listed_then_renamed(path: Path) -> contextlib.nullcontext[list[os.DirEntry[str]]]:
        """As scandir(3), of a folder in which an editor's file goes after it was listed."""
        gone = path / "x.toml~"
        gone.touch()
        with real(path) as entries:
            found = list(entries)
        gone.unlink()
        return contextlib.nullcontext(found)

    monkeypatch.setattr(os, "scandir", listed_then_renamed)
    now = KnownProfiles(folder.parent).now()
    assert (now.environment["A"], now.problems) == ("1", ())


def test_there_is_a_bound(folder: Path) -> None:
    for number in range(MOST + 1):
        put(folder, f"p{number:03}", of(f"x{number}"))
    now = KnownProfiles(folder.parent).now()
    assert len(now.all) == MOST + len(OURS)
    assert [problem.on for problem in now.problems] == [str(folder)]


@pytest.mark.parametrize(
    ("words", "profile"),
    [
        ("claude", "claude"),
        ("node /usr/local/bin/claude --model x", "claude"),
        ("node --no-warnings /opt/codex exec", "codex"),
        ("node server.js", "node"),
        ("/usr/bin/python3.11 -m jupyter lab", "jupyter"),
        ("python3 -m http.server", "python"),
        ("-bash", "shell"),
        ("sh /usr/bin/mariadbd-safe", "mariadb"),
        ("postgres:_checkpointer", "postgres"),
        ("tail claude", "monitors"),
        ("something claude", "base"),
    ],
)
def test_a_process_gets_the_profile_of_its_program_or_of_the_script_that_runs(words: str, profile: str) -> None:
    found = Profiles([], OURS).of([word.replace("_", " ") for word in words.split(" ")])
    assert found is not None
    assert found.name == profile


def test_one_of_the_home_goes_before_ours_and_takes_the_place_of_one_with_its_name() -> None:
    def own(name: str, *programs: str) -> Named:
        return Named(name, "", parse_profile(of(*programs)), "")

    def names(profiles: Profiles, *words: str) -> list[str]:
        return [found.name for word in words if (found := profiles.of([word])) is not None]

    assert names(Profiles([own("mine", "vim", "zz*")], OURS), "vim", "vi", "zzz", "q") == [
        "mine",
        "vim",
        "mine",
        "base",
    ]
    replaced = Profiles([own("vim", "vimx")], OURS)
    assert names(replaced, "vimx", "vim") == ["vim", "base"]
    assert names(Profiles([own("base", "nothing")], OURS), "q") == []


@pytest.mark.parametrize(
    ("words", "again", "unasked"),
    [
        ("claude", "claude --continue", True),
        ("claude --resume 7 --model opus do_it", "claude --continue --model opus", True),
        ("claude --model=opus --continue", "claude --continue --model=opus", True),
        (
            "node /usr/bin/claude --dangerously-skip-permissions",
            "node /usr/bin/claude --continue --dangerously-skip-permissions",
            True,
        ),
        ("claude -p do_it", "claude -p do_it", False),
        ("node ./claude", "node ./claude --continue", False),
        ("codex --yolo -m gpt-5 do_it", "codex resume --last --yolo -m gpt-5", True),
        ("codex exec do_it", "codex exec do_it", False),
        ("vim notes", "vim -r notes", True),
        ("vim -r notes", "vim -r notes", True),
        ("vim +!rm notes", "vim +!rm notes", False),
        ("wget https://host/x", "wget -c https://host/x", False),
        ("tail --follow=name log", "tail --follow=name log", True),
        ("python3 x.py", "python3 x.py", False),
    ],
)
def test_a_program_is_started_again_as_its_profile_says(words: str, again: str, unasked: bool) -> None:  # noqa: FBT001
    found = Profiles([], OURS).again(words.split())
    assert (" ".join(found.argv), found.unasked, found.never) == (again, unasked, "")


def test_what_must_not_be_begun_once_more_is_not() -> None:
    assert "broken off" in Profiles([], OURS).again(["apt-get", "install", "x"]).never


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("gdb -q -p 77", {77}),
        ("gdb -ex break_12", set()),
        ("gdb --args sleep 77", set()),
        ("strace -f -p77 -o log", {77}),
        ("tail --pid=77 -n 5 -f log", {77}),
        ("tail --pid 77 -f log", {77}),
        ("top -b -p 7,9", {7, 9}),
        ("py-spy top --pid 77", {77}),
        ("sleep 77", set()),
        ("journalctl -p 3", set()),
    ],
)
def test_the_pids_in_a_program_s_words_are_known_by_its_profile(words: str, named: set[int]) -> None:
    assert Profiles([], OURS).pids_named(words.split()) == named
