"""How an export gets its name where a file system has no hard links."""

import errno
import os
from pathlib import Path

import pytest

from waypoint.cli.disk import export


def refuse(*paths: object, **folders: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("has_links", [True, False])
def test_it_gets_its_name_and_never_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    folder = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "aside").write_text("written")
    export._name_anew(folder, "aside", "it.wpx")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("it.wpx", "written")]
    (tmp_path / "aside").write_text("again")
    with pytest.raises(FileExistsError):
        export._name_anew(folder, "aside", "it.wpx")
    assert (tmp_path / "it.wpx").read_text() == "written"
    os.close(folder)
