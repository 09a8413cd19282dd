"""What somebody has touched, or written once more, is what it was; what was changed is taken back by force alone."""

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.applying.ground import Ground
from tests.upper.pictures import ACL_USER_1234_RWX, CAPABILITY_NET_RAW, picture
from waypoint.branch.applying.journal import Journal
from waypoint.upper.writing.whole_digest import digest_of

pytestmark = pytest.mark.privileged

BY_THE_SESSION = b"by the session " * 9000  # more than is read by one call


def _furnish(ground: Ground) -> Any:
    """Returns the picture of the machine before."""
    for path in ("edited", "gone", "in/edited", "tree/deep/file", "moved/file"):
        place = ground.base / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path)
    ground.begin()
    before = picture(ground.base)
    with ground.session() as view:
        for path in ("edited", "in/edited", "made"):
            (view / path).write_bytes(BY_THE_SESSION)
        os.setxattr(view / "made", "security.capability", CAPABILITY_NET_RAW)  # nobody may execute it yet
        (view / "in").chmod(0o750)
        (view / "gone").unlink()
        (view / "moved").rename(view / "new place")
        (view / "new place/link").symlink_to("/nowhere")
        (view / "new place/hole").touch()
        os.truncate(view / "new place/hole", 3 << 20)
        (view / "new place/file").chmod(0o4711)
        os.setxattr(view / "new place/file", "security.capability", CAPABILITY_NET_RAW)
        os.setxattr(view / "new place", "system.posix_acl_default", ACL_USER_1234_RWX)
        (view / "new place/other name").hardlink_to(view / "new place/file")
    return before


def _touch(root: Path, *paths: str) -> None:
    """New inodes and times, and nothing else."""
    for path in paths:
        copy = root.parent / "copy"
        if (root / path).is_dir():
            shutil.copytree(root / path, copy, symlinks=True, copy_function=_copied)
        else:
            _copied(str(root / path), str(copy))
        shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()
        copy.rename(root / path)


def _copied(origin: str, copy: str) -> None:
    shutil.copy2(origin, copy, follow_symlinks=False)
    os.utime(copy, ns=(1, 1), follow_symlinks=False)


def _same(one: Any, other: Any) -> bool:
    """But for the times of folders, in which others have made files."""
    return _without_times(one) == _without_times(other)


def _without_times(shown: Any) -> Any:
    named = {path: facts for path, facts in shown.items() if path != b"hard links"}
    return {path: (*facts[:3], stat.S_ISDIR(facts[0]) or facts[3], *facts[4:]) for path, facts in named.items()}


def test_what_was_only_touched_is_taken_back(ground: Ground) -> None:
    """So it is with what the undo has put back, when that is taken back; and where somebody has put back himself what
    was there before.
    """
    before = _furnish(ground)
    done = ground.apply()
    assert (done.conflicts, done.setid) == ([], ["/made", "/new place/file", "/new place/other name"])
    applied, after = ground.last, picture(ground.base)
    _touch(ground.base, "edited", "in/edited", "made", "new place")
    (ground.base / "gone").write_text("gone")
    (ground.base / "in").chmod(0o755)
    assert ground.apply(dry_run=True).conflicts != [], "of others"
    ground.seen = [applied]
    (ground.base / "edited").unlink()
    (ground.base / "edited").write_text("edited")
    assert [line.path for line in ground.apply(dry_run=True).conflicts] == ["/edited", "/gone"]
    assert ground.revert(applied).conflicts == []
    back = ground.last
    assert _same(picture(ground.base), before)
    _touch(ground.base, "edited", "in/edited")
    assert ground.apply(dry_run=True).conflicts == [], "it is what the session has seen"
    assert ground.revert(back).conflicts == []
    for path, content in (("in/edited", BY_THE_SESSION), ("made", BY_THE_SESSION), ("edited", b"edited")):
        assert (ground.base / path).read_bytes() == content
    assert picture(ground.base).keys() == {*after, b"gone"}
    again = ground.last
    _touch(ground.base, "made", "new place")
    assert ground.revert(again).conflicts == []


@pytest.mark.parametrize("change", ["content", "size", "owner", "mode", "attribute", "link", "entry", "less", "hole"])
def test_what_was_changed_is_not(ground: Ground, change: str) -> None:
    _furnish(ground)
    assert ground.apply().conflicts == []
    place = ground.base / "new place"
    _change(place, change)
    before = picture(ground.base)
    assert [line.path for line in ground.revert(ground.last).conflicts] == ["/new place"]
    assert _same(picture(ground.base), before)


def _change(place: Path, change: str) -> None:
    match change:
        case "content":
            (place / "file").write_text("moved/filE")
        case "size":
            (place / "hole").write_bytes(b"")
        case "owner":
            os.chown(place / "link", 1234, 0, follow_symlinks=False)
        case "mode":
            (place / "file").chmod(0o4710)
        case "attribute":
            os.setxattr(place, "user.one", b"")
        case "link":
            (place / "link").unlink()
            (place / "link").symlink_to("/nowherE")
        case "entry":
            (place / "more").touch()
        case "less":
            (place / "hole").unlink()
        case "hole":
            with (place / "hole").open("r+b") as file:
                file.seek(2 << 20)
                file.write(b"x")


def test_by_force_and_back(ground: Ground) -> None:
    """As git, which writes the index anew when it is asked what was changed."""
    before = _furnish(ground)
    assert ground.apply().conflicts == []
    applied = ground.last
    for path in ("edited", "gone", "made"):
        (ground.base / path).write_text("by somebody")
    (ground.base / "new place/more").write_text("by somebody")
    (ground.base / "in").chmod(0o711)
    changed = picture(ground.base)
    refused = ground.revert(applied)
    paths = ["/edited", "/gone", "/in", "/made", "/new place"]
    assert ([line.path for line in refused.conflicts], refused.fixed, refused.replaced) == (paths, 0, [])
    done = ground.revert(applied, force=True)
    assert (done.conflicts, done.replaced) == ([], paths)
    assert _same(picture(ground.base), before)
    assert ground.revert(ground.last).conflicts == []
    assert _same(picture(ground.base), changed)


@pytest.mark.requires("git")
def test_when_git_has_looked(ground: Ground) -> None:
    """It notes in the index that it has seen the files that the apply has put."""
    repository = _repository_in(ground)
    _commit_in_session(ground)
    before = picture(ground.base)
    assert ground.apply().conflicts == []
    applied, after = ground.last, picture(ground.base)
    os.utime(repository / "edited")
    _git(repository, "status")
    assert [line.path for line in ground.revert(applied).conflicts] == ["/repository/.git/index"]
    assert ground.revert(applied, force=True).replaced == ["/repository/.git/index"]
    assert _same(picture(ground.base), before)
    _git(repository, "status")
    assert ground.revert(ground.last, force=True).conflicts == []
    assert picture(ground.base).keys() == after.keys()
    assert _git(repository, "status", "--porcelain") == ""


@pytest.mark.requires("git")
def test_when_git_has_looked_before(ground: Ground) -> None:
    """The index is another one than the session has seen: by force the repository is whole, before and after."""
    repository = _repository_in(ground)
    os.utime(repository / "edited", (1, 1))
    _commit_in_session(ground)
    ground.wait_for_clock()
    _git(repository, "status")
    before = picture(ground.base)
    refused = ground.apply()
    assert ([line.path for line in refused.conflicts], refused.fixed) == (["/repository/.git/index"], 0)
    assert ground.apply(force=True).replaced == ["/repository/.git/index"]
    assert _git(repository, "status", "--porcelain") == ""
    assert _git(repository, "log", "--format=%s") == "it\n"
    assert ground.revert(ground.last, force=True).replaced == ["/repository/.git/index"], "git has looked once more"
    assert _same(picture(ground.base), before)


def _repository_in(ground: Ground) -> Path:
    """A repository on the machine, whose index knows one file."""
    repository = ground.base / "repository"
    _git(ground.base, "init", "-q", str(repository))
    (repository / "edited").write_text("edited")
    _git(repository, "add", ".")
    return repository


def _commit_in_session(ground: Ground) -> None:
    ground.begin()
    with ground.session() as view:
        (view / "repository/edited").write_text("by the session")
        _git(view / "repository", "add", ".")
        _git(view / "repository", *("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "it"))


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def test_after_a_name_was_moved_away_the_branch_may_apply_again(ground: Ground) -> None:
    """The undo has less to do than the apply had done."""
    _furnish(ground)
    assert ground.apply().conflicts == []
    (ground.base / "made").rename(ground.base / "elsewhere")
    assert ground.revert(ground.last).conflicts == []
    assert ground.apply().conflicts == []
    assert (ground.base / "made").read_bytes() == BY_THE_SESSION


def test_the_same_on_both_sides_with_several_names(ground: Ground) -> None:
    _furnish(ground)
    ground.wait_for_clock()
    (ground.base / "edited").write_bytes(BY_THE_SESSION)
    (ground.base / "name of the machine's").hardlink_to(ground.base / "edited")
    assert ground.apply().conflicts == []
    assert (ground.base / "edited").stat().st_nlink == 1


def test_a_journal_of_an_earlier_version(ground: Ground) -> None:
    """It has neither digests nor handles: what was touched is refused, all else is as ever."""
    before = _furnish(ground)
    assert ground.apply().conflicts == []
    journal = Journal(str(ground.journals), ground.last)
    for word, shorten in (("plan", _older_plan), ("staged", lambda staged: [one[:2] for one in staged])):
        path = Path(journal.path) / word
        path.write_bytes(msgspec.msgpack.encode(shorten(msgspec.msgpack.decode(path.read_bytes()))))
    plan, staged = journal.plan(), journal.staged()
    assert plan is not None
    assert staged is not None
    assert ({change.handle for change in plan.folders}, {one.digest for one in staged}) == ({None}, {b""})
    _touch(ground.base, "edited")
    assert [line.path for line in ground.revert(journal.ident).conflicts] == ["/edited"]
    (ground.base / "edited").unlink()
    assert ground.revert(journal.ident).conflicts == []
    assert _same(picture(ground.base), before)


def _older_plan(plan: Any) -> Any:
    return {**plan, "folders": [change[:4] for change in plan["folders"]]}


def test_where_holes_are_does_not_count(corner: Path) -> None:
    with (corner / "sparse").open("wb") as file:
        os.truncate(file.fileno(), 3 << 20)
        file.seek((1 << 20) - 3)
        file.write(b"across the pieces")
    os.utime(corner / "sparse", (1, 1))
    shutil.copyfile(corner / "sparse", corner / "dense")
    (corner / "other").write_bytes((corner / "dense").read_bytes().replace(b"across", b"AcrosS"))
    for name in ("dense", "other"):
        (corner / name).chmod((corner / "sparse").stat().st_mode)
    folder = os.open(corner, os.O_RDONLY)
    try:
        sparse, dense, other = (digest_of(folder, name) for name in ("sparse", "dense", "other"))
    finally:
        os.close(folder)
    assert sparse == dense != other
