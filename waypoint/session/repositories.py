"""Git repositories of the machine: committing the changes of a capture to a new branch, and merging files.

git reads the files from a stream (git-fast-import(1)), never from the session: a session may have written configuration
or repositories of its own that would make git run programs.
"""

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.capture.captures import HeldCapture
from waypoint.linux.calls import programs
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import Failed, HostLacks, StateConflict, UsageProblem
from waypoint.model.records import User
from waypoint.session.birth import rights
from waypoint.session.birth.users import find_user
from waypoint.session.live.resources import Resources
from waypoint.session.views import lower_of, mounted_view, scope_of
from waypoint.upper import layout, patches
from waypoint.upper.changes import changed_targets
from waypoint.upper.comparing import Change, changes, contents
from waypoint.upper.views import Pairs, Views, candidates

_MOST_FILE = 1 << 30
_NOBODY = "Waypoint <waypoint@localhost>"


class Repository(NamedTuple):
    """`top`: the root of the working tree. `user`: with whose rights git runs there."""

    top: str
    user: User

    def git(self, *words: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        try:
            return programs.answer("git", "-C", self.top, *words, given=given, user=self.user, home=self.user.home)
        except FileNotFoundError as error:
            raise HostLacks("commit to", self.top, "git is not installed", "install the package git") from error

    def must(self, *words: str, given: bytes = b"") -> bytes:
        done = self.git(*words, given=given)
        if done.returncode != 0:
            lines = os.fsdecode(done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
            raise Failed(f"run git {words[0]} in", self.top, lines[-1], f"see 'git -C {self.top} status'")
        return done.stdout


def commit(resources: Resources, held: HeldCapture, top: str, branch: str, paths: list[str]) -> int:
    """Commit the changes at and below `top`, or only those at or below `paths`, to the new `branch`, whose parent is
    HEAD. Files that git ignores are left out. Returns the number of files. Blocks.
    """
    repository = Repository(top, _user_of(resources, top))
    if repository.git("check-ref-format", "--branch", branch).returncode != 0:
        raise UsageProblem("commit to", f"branch {branch} of {top}", "git does not accept this name", "choose another")
    if repository.git("show-ref", "--verify", "--quiet", f"refs/heads/{branch}").returncode == 0:
        raise StateConflict("commit to", f"branch {branch} of {top}", "it exists", "choose another name")
    with_content = list(_changed(resources, held, top, paths or [top]))
    ignored = _ignored(repository, [path for path, _, _ in with_content])
    files = [one for one in with_content if one.path not in ignored]
    if files:
        message = f"Changes of {held.capture.branch} in a Waypoint session"
        repository.must("fast-import", "--quiet", given=b"".join(_stream(repository, branch, message, files)))
    return len(files)


def merge(resources: Resources, path: str, machine: bytes, session: bytes) -> bytes | None:
    """Merge the machine's and the session's version of the file `path` with git; the version that both have begun with
    is that of HEAD. None if the file is in no commit, or the versions have changed the same lines.
    """
    top = os.path.dirname(path)
    while top != "/" and not os.path.lexists(f"{top}/.git"):
        top = os.path.dirname(top)
    if top == "/":
        return None
    repository = Repository(top, _user_of(resources, top))
    base = repository.git("show", f"HEAD:{os.path.relpath(path, top)}")
    if base.returncode != 0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # for the repository's owner, as whom root runs git; the names cannot be guessed
        names = [f"{folder}/{name}" for name in ("machine", "base", "session")]
        for name, content in zip(names, (machine, base.stdout, session), strict=True):
            with open(name, "wb") as file:
                file.write(content)
        merged = repository.git("merge-file", "-p", "--quiet", *names)
    return merged.stdout if merged.returncode == 0 else None


def has_nothing_staged(resources: Resources, index: str) -> bool:
    """Whether the index of a repository of the machine, at the path `index`, says the same as the commit HEAD."""
    top, _, name = index.rpartition("/.git/")
    if name != "index":
        return False
    repository = Repository(top, _user_of(resources, top))
    return repository.git("diff-index", "--cached", "--quiet", "HEAD", "--").returncode == 0


class _File(NamedTuple):
    """`path`: in the repository. `mode`: git's; b"": the file was removed."""

    path: str
    mode: bytes
    content: bytes


def _user_of(resources: Resources, top: str) -> User:
    """The caller; for root the repository's owner, whose configuration of git root should not run."""
    user = rights.restricted_caller(resources)
    try:
        owner = os.stat(f"{top}/.git", follow_symlinks=False).st_uid
    except OSError as error:
        said = "it is not the root of a git repository"
        raise UsageProblem("commit to", top, said, "name a file in a repository: -- PATH") from error
    return user if user is not None else find_user("/", str(owner))


def _changed(resources: Resources, held: HeldCapture, top: str, paths: list[str]) -> Iterator[_File]:
    setting, places = held.capture.setting, resources.places
    places.follow_host()
    for target in sorted(changed_targets(held.files)):
        scope = scope_of(places, setting, target, paths)
        upper = layout.upper_of(held.files, target)
        if scope is None:
            continue
        with (
            mounted_view(places, setting.base, target, upper) as view,
            open_folder(view.path) as shown,
            open_folder(lower_of(setting.base, target)) as machine,
            Pairs(Views(shown, machine)) as pairs,
        ):
            differing = candidates(upper, "", scope.concerns)
            with rights.as_caller(resources):
                for change in changes(differing, pairs, scope):
                    path = f"{target.rstrip('/')}/{change.path}".removeprefix(f"{top}/")
                    if not f"{path}/".startswith(".git/") and not path.startswith("/"):
                        yield from _as_file(path, change, pairs)


def _as_file(path: str, change: Change, pairs: Pairs) -> Iterator[_File]:
    wanted = change.wanted
    if wanted is None or not (stat.S_ISREG(wanted.st_mode) or stat.S_ISLNK(wanted.st_mode)):
        if change.present is not None and not stat.S_ISDIR(change.present.st_mode):
            yield _File(path, b"", b"")
        return
    content = contents(change, pairs, _MOST_FILE)[1]
    yield _File(path, patches.git_mode(wanted.st_mode), content or b"")


def _ignored(repository: Repository, paths: list[str]) -> set[str]:
    given = b"".join(os.fsencode(path) + b"\0" for path in paths)
    found = repository.git("check-ignore", "-z", "--stdin", given=given).stdout  # status 1: no path is ignored
    return {os.fsdecode(path) for path in found.split(b"\0") if path}


def _stream(repository: Repository, branch: str, message: str, files: Iterable[_File]) -> Iterator[bytes]:
    """The input of git-fast-import."""
    ident = repository.git("var", "GIT_COMMITTER_IDENT")
    who = ident.stdout.strip() if ident.returncode == 0 else f"{_NOBODY} {int(time.time())} +0000".encode()
    head = repository.git("rev-parse", "--verify", "--quiet", "HEAD^{commit}").stdout.strip()
    yield b"commit refs/heads/%s\ncommitter %s\n" % (branch.encode(), who)
    yield _data(message.encode())
    if head:
        yield b"from %s\n" % head
    for file in files:
        path = patches.quoted(file.path)
        if not file.mode:
            yield b"D %s\n" % path
        else:
            yield b"M %s inline %s\n" % (file.mode, path)
            yield _data(file.content)
    yield b"\n"


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
