"""A home that comes from elsewhere brings no program that root runs."""

import hashlib
from pathlib import Path

from waypoint.setup.criu_install import installed, known


def test_a_criu_that_was_not_installed_on_this_machine_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "criu-4.2.1-1-0123abcd"
    for name, content in {"bin/criu": f"{folder}/lib/ld.so", "lib/ld.so": "loader", "share/MANIFEST": "criu"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    names = ["bin/criu", "lib/ld.so", "share/MANIFEST"]
    digests = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (folder / "share/FILES").write_text(digests)
    (tmp_path / "criu").symlink_to(folder.name)
    assert installed(tmp_path) is None
    known(tmp_path).parent.mkdir(parents=True, exist_ok=True)
    known(tmp_path).write_text(hashlib.sha256(digests.encode()).hexdigest())
    try:
        assert installed(tmp_path) == tmp_path / "criu/bin/criu"
    finally:
        known(tmp_path).unlink()
