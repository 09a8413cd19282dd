"""What `--publish` takes."""

import pytest

from waypoint.egress.published import Port, wanted
from waypoint.model.errors import UsageProblem


@pytest.mark.parametrize(
    ("text", "meant", "on"),
    [
        ("8080:80", "127.0.0.1:8080:80", "127.0.0.1:8080"),
        ("0.0.0.0:8080:80", "0.0.0.0:8080:80", "0.0.0.0:8080"),
        ("[::1]:65535:1", "[::1]:65535:1", "[::1]:65535"),
        ("::1:8080:80", "[::1]:8080:80", "[::1]:8080"),
        ("8080:80/tcp", "127.0.0.1:8080:80", "127.0.0.1:8080"),
        ("53:53/udp", "127.0.0.1:53:53/udp", "127.0.0.1:53"),
        ("[::1]:53:53/udp", "[::1]:53:53/udp", "[::1]:53"),
    ],
)
def test_ports(text: str, meant: str, on: str) -> None:
    found = Port.parse(text)
    assert (str(found), found.on) == (meant, on)
    assert Port.parse(str(found)) == found
    assert wanted([text, text]) == [meant]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "80",
        "80:",
        ":80",
        "0:80",
        "65536:80",
        "a:80",
        "host:80:80",
        "1.2.3:80:80",
        "8:8/sctp",
        "8:8/",
        "/udp",
        "8:/udp",
        "8:8/udp/udp",
        "8:8/udp/tcp",
    ],
)
def test_nothing_else(text: str) -> None:
    with pytest.raises(UsageProblem, match="publish"):
        Port.parse(text)


def test_none_is_none_of_those_of_the_branch() -> None:
    assert wanted([]) is None
    assert wanted(["none"]) == []
    with pytest.raises(UsageProblem, match="none stands alone"):
        wanted(["none", "80:80"])
    with pytest.raises(UsageProblem, match="64 at most"):
        wanted([f"{number}:80" for number in range(1, 66)])
