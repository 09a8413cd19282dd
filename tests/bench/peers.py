"""Other programs that store a folder, so that equal content is stored once: git, restic, borg."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.bench.frame import ms_of_command

_IDENTITY = {f"GIT_{who}_{what}": f"bench@{who}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Peer:
    """A program, with a repository in the folder `place`."""

    def __init__(self, name: str, place: Path, env: dict[str, str], *commands: list[str]) -> None:
        """`commands`: the first one makes the repository, the others store."""
        self.name = name
        self.is_installed = shutil.which(name) is not None
        self._place, self._commands = place, commands
        self._env = {"PATH": os.environ["PATH"], "HOME": str(place)} | env

    def forget(self) -> None:
        """Begin with an empty repository."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True)
        ms_of_command(self._commands[0], self._env)

    def store(self) -> float:
        """Milliseconds."""
        return sum(ms_of_command(command, self._env) for command in self._commands[1:])


def all_peers(folder: Path, files: Path) -> Iterator[Peer]:
    """`files`: the folder that they store."""
    git = {"GIT_DIR": str(folder / "git/repo"), "GIT_WORK_TREE": str(files), "GIT_CONFIG_NOSYSTEM": "1"}
    steps = (["git", "init", "-q"], ["git", "add", "-A"], ["git", "commit", "-qm", "x"])
    yield Peer("git", folder / "git", git | _IDENTITY, *steps)
    restic = {"RESTIC_REPOSITORY": str(folder / "restic/repo"), "RESTIC_PASSWORD": "bench"}
    yield Peer("restic", folder / "restic", restic, ["restic", "init", "-q"], ["restic", "backup", "-q", str(files)])
    borg = {
        "BORG_REPO": str(folder / "borg/repo"),
        "BORG_BASE_DIR": str(folder / "borg"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }
    archive = "::{utcnow:%Y%m%dT%H%M%S.%f}"
    yield Peer("borg", folder / "borg", borg, ["borg", "init", "-e", "none"], ["borg", "create", archive, str(files)])
