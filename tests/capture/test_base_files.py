"""Former files of the base with rights that a session must not get from an image."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from waypoint.capture.layers import base_files
from waypoint.capture.layers.base_listing import LISTING, BaseFile, BaseFiles
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import Area
from waypoint.model.errors import CannotCapture
from waypoint.upper import layout
from waypoint.upper.placing import Where

pytestmark = pytest.mark.privileged


class Place:
    """A capture with one file of the base that the machine has in another version, and the tree of a new session."""

    def __init__(self, folder: Path, mode: int) -> None:
        (folder / "base/bin").mkdir(parents=True)
        (folder / "base/bin/tool").write_text("a later version")
        self.area = Area(None, Hot(folder))  # type: ignore[arg-type]  # the pool is not used
        setting: Any = SimpleNamespace(base=str(folder / "base"), pinned=None)
        self.origin: Any = SimpleNamespace(id="f" * 32, setting=setting, tier="live")
        kept = self.area.hot.base(self.origin.id)
        kept.mkdir(parents=True)
        content = "0" * 32
        (kept / content).write_text("former")
        file = BaseFile(path="/bin/tool", size=6, mtime=1, mode=mode, uid=0, gid=0, content=content, is_capable=True)
        (kept / LISTING).write_bytes(msgspec.json.encode(BaseFiles([file])))
        tree = str(folder / "tree")
        self.upper = Path(layout.upper_of(tree, "/"))
        self.upper.mkdir(parents=True)
        self.where = Where(tree, ["/"], setting.base)

    def put(self, *, is_shifted: bool) -> None:
        base_files.put_differing(self.area, self.origin, self.where, is_shifted=is_shifted)


def test_a_former_file_with_a_set_id_bit_needs_shifted_ids(tmp_path: Path) -> None:
    for mode in (0o4755, 0o2755):
        place = Place(tmp_path / str(mode), mode)
        with pytest.raises(CannotCapture, match="/bin/tool") as caught:
            place.put(is_shifted=False)
        assert caught.value.code == "base-file-refused"
        assert not (place.upper / "bin/tool").exists()
        place.put(is_shifted=True)
        assert (place.upper / "bin/tool").stat().st_mode & 0o7777 == mode


def test_lost_file_capabilities_are_reported(tmp_path: Path) -> None:
    place = Place(tmp_path, 0o755)
    place.put(is_shifted=False)
    found = [(one.code, one.subject) for one in base_files.changed_on_machine(place.area, place.origin)]
    assert found == [("base-files-changed", "/bin/tool"), ("base-files-not-capable", "/bin/tool")]
