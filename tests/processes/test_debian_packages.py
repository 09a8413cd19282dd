"""Downloading packages of another Debian suite with apt, without using the machine's own apt state."""

import re
import subprocess
from pathlib import Path

import pytest

from waypoint.model.errors import HostLacks
from waypoint.processes.criu import messages as criu_messages
from waypoint.processes.criu.messages import Message
from waypoint.setup import debian_packages
from waypoint.setup.debian_packages import DEFAULT_MIRROR, AptFailed, Archive, find_keyring, find_mirror, unpack

ONE_LINE = "deb [arch=amd64] http://mirror.example.org/pub/debian bookworm main\n"
DEB822 = "Types: deb\nURIs: http://mirror.example.org/pub/debian\nSuites: bookworm\nComponents: main\n"
OTHERS = (
    "deb http://security.debian.org/debian-security bookworm-security main\ndeb https://packages.example.com x main\n"
)

has_apt = pytest.mark.requires("apt-get")


def use_sources(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Make apt read its sources from files with the given texts. The `_` in a name becomes the dot of its suffix."""
    parts = folder / "sources.list.d"
    parts.mkdir()
    for name, text in texts.items():
        (parts / name.replace("_", ".")).write_text(text)
    config = folder / "apt.conf"
    config.write_text(f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{parts}";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))


@has_apt
@pytest.mark.parametrize(("name", "text"), [("a_list", ONE_LINE), ("a_sources", DEB822)])
def test_the_machine_s_mirror_is_found_in_either_format(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_sources(tmp_path, monkeypatch, **{"0_list": OTHERS, name: text})
    assert find_mirror().rstrip("/") == "http://mirror.example.org/pub/debian"


@has_apt
def test_debian_s_mirror_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_sources(tmp_path, monkeypatch, a_list=OTHERS)
    assert find_mirror() == DEFAULT_MIRROR


def test_a_missing_keyring_is_an_error_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian_packages, "KEYRINGS", (tmp_path / "none.gpg",))
    with pytest.raises(HostLacks, match="keyring") as caught:
        find_keyring()
    assert "debian-archive-keyring" in caught.value.next_step
    assert "WAYPOINT_CRIU" in caught.value.next_step


def test_a_missing_apt_is_an_error_with_a_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_packages.programs, "SEARCH_PATH", str(tmp_path))
    with pytest.raises(HostLacks, match="the program apt-get") as caught:
        debian_packages.require_tools()
    assert "WAYPOINT_CRIU" in caught.value.next_step


@pytest.mark.soak(part="setup")
@has_apt
def test_an_unreachable_mirror_is_reported_with_apt_s_message(tmp_path: Path) -> None:
    archive = Archive(tmp_path, mirror="http://127.0.0.1:9/debian", suite="forky", keyring=find_keyring())
    with pytest.raises(AptFailed, match=r"Connection refused|Unable to connect") as caught:
        archive.update(print)
    assert caught.value.on == "http://127.0.0.1:9/debian"
    assert "network" in caught.value.next_step


@pytest.mark.soak(part="setup")
@has_apt
@pytest.mark.requires("network")
class TestWithAMirror:
    def test_a_missing_package_is_named(self, tmp_path: Path) -> None:
        archive = Archive(tmp_path, mirror=find_mirror(), suite="forky", keyring=find_keyring())
        archive.update(print)
        with pytest.raises(AptFailed, match="Unable to locate package no-such"):
            archive.download("no-such-package")

    def test_a_suite_signed_with_an_unknown_key_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty.gpg").touch()
        archive = Archive(tmp_path / "apt", mirror=find_mirror(), suite="forky", keyring=tmp_path / "empty.gpg")
        with pytest.raises(AptFailed, match="sign"):
            archive.update(print)

    def test_an_outdated_mirror_is_used_with_a_message(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        strict = tmp_path / "strict.conf"
        strict.write_text('Acquire::Max-ValidTime "1";\n')  # every mirror counts as outdated
        monkeypatch.setenv("APT_CONFIG", str(strict))
        said: list[str] = []
        archive = Archive(tmp_path / "apt", mirror=find_mirror(), suite="forky", keyring=find_keyring())
        archive.update(said.append)
        assert said == ["the mirror's list of forky is out of date; it is used nevertheless"]

    def test_field_numbers_are_those_of_crius_own_proto_file(self, tmp_path: Path) -> None:
        """Debian's package libcriu-dev contains the proto file from which CRIU is built."""
        archive = Archive(tmp_path / "apt", mirror=find_mirror(), suite="forky", keyring=find_keyring())
        archive.update(print)
        packages = archive.download("libcriu-dev")
        unpack([package for package in packages if package.name == "libcriu-dev"], tmp_path / "root")
        described = parse_proto((tmp_path / "root/usr/include/criu/rpc.proto").read_text())
        tables = {
            "criu_req": criu_messages.REQUEST,
            "criu_opts": criu_messages.OPTIONS,
            "criu_features": criu_messages.FEATURES,
            "criu_resp": criu_messages.RESPONSE,
            "criu_version": criu_messages.VERSION,
        }
        for name, table in tables.items():
            for field, row in numbers(table).items():
                assert described[name][field] == row, (name, field)
        wanted = {kind.name: int(kind) for kind in criu_messages.RequestType}
        assert wanted.items() <= described["criu_req_type"].items()
        assert described["criu_cg_mode"]["IGNORE"] == criu_messages.CGROUPS_IGNORE
        assert described["criu_network_lock_method"]["SKIP"] == criu_messages.NETWORK_LOCK_SKIP


def numbers(table: Message) -> dict[str, tuple[int, bool]]:
    return {name: (field.number, field.repeated) for name, field in table.fields.items()}


def parse_proto(text: str) -> dict[str, dict[str, object]]:
    """Return for each message: field to (number, is repeated); for each enum: name to number."""
    found: dict[str, dict[str, object]] = {}
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    for kind, name, body in re.findall(r"(message|enum)\s+(\w+)\s*\{(.*?)\}", text, re.DOTALL):
        if kind == "enum":
            found[name] = {key: int(value) for key, value in re.findall(r"(\w+)\s*=\s*(\d+)", body)}
        else:
            fields = re.findall(r"(optional|required|repeated)\s+\w+\s+(\w+)\s*=\s*(\d+)", body)
            found[name] = {field: (int(number), label == "repeated") for label, field, number in fields}
    return found


def test_a_proto_file_is_parsed() -> None:
    text = "message a {\n  required int32 x = 1;\n repeated b y = 27; /* z = 3 */ }\nenum c { IGNORE = 0; FULL = 4; };"
    assert parse_proto(text) == {"a": {"x": (1, False), "y": (27, True)}, "c": {"IGNORE": 0, "FULL": 4}}


@has_apt
def test_a_broken_package_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_bytes(b"not a package")
    broken = debian_packages.Package("x", "1", "amd64", "", tmp_path / "x.deb")
    with pytest.raises(AptFailed, match=r"x\.deb"):
        unpack([broken], tmp_path / "root")


@pytest.mark.soak(part="setup")
@has_apt
def test_the_machine_s_state_of_apt_is_not_changed(tmp_path: Path) -> None:
    places = ["/var/lib/apt", "/var/lib/dpkg", "/var/cache/apt"]
    look = ["find", *places, "-newer", str(tmp_path / "begin"), "-not", "-type", "d"]
    (tmp_path / "begin").touch()
    archive = Archive(tmp_path / "apt", mirror="http://127.0.0.1:9/debian", suite="forky", keyring=find_keyring())
    with pytest.raises(AptFailed):
        archive.update(print)
    done = subprocess.run(look, capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if "lock" not in line] == []
