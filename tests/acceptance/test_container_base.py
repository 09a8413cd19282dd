"""Sessions on bases that were made of container images, and of Dockerfiles."""

import os
import tarfile
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside
from tests.acceptance.small_base import make_base
from tests.homes import Home
from tests.store.oci_images import Image, Member, layer, put_layout, tar_of

pytestmark = pytest.mark.privileged

RUN = {
    "Env": ["PATH=/opt/own:/bin", "WORD=of the image", "LANG=C.UTF-8", "TERM=dumb", "WAYPOINT_BRANCH=other"],
    "WorkingDir": "/srv/work",
    "User": "tester:extra",
    "Entrypoint": ["/entry"],
    "ExposedPorts": {"80/tcp": {}},
}

BUILDER = """#!/bin/sh
echo "$@" >>{place}/calls
case $1 in
build) echo building; echo sha256:0123 >"$5"; test -e "$6/fails" && exit 3; exit 0 ;;
push) exec cp {place}/image.tar "${{4#oci-archive:}}" ;;
esac
"""
"""A program that is called as buildah, and writes the same image always."""


def image_of(place: Path) -> Image:
    """A small root file system as a layer, and a layer above it."""
    root = make_base(place / "root")
    (root / "srv/work").mkdir(parents=True)
    with tarfile.open(place / "layer.tar", "w") as tar:
        tar.add(root, ".")
    above = layer(
        Member("etc/marker", content=b"of the image\n"), Member("bin/.wh.wc"), Member("dev/x", tarfile.CHRTYPE)
    )
    return Image([(place / "layer.tar").read_bytes(), above], RUN)


def test_sessions_on_a_container_image_have_its_files_and_settings(home: Home, tmp_path: Path) -> None:
    put_layout(tmp_path / "image", image_of(tmp_path))
    tar_of(tmp_path / "image")
    build, tools = tmp_path / "build", tmp_path / "tools"
    for folder in (build, tools):
        folder.mkdir()
    (build / "Dockerfile").write_text("FROM scratch\n")
    (tools / "buildah").write_text(BUILDER.format(place=tmp_path))
    (tools / "buildah").chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    made = home.must("base", "create", "built", "--from", str(build), "--json", env=env).json()
    again = home.must("base", "create", "saved", "--from", str(tmp_path / "image.tar"), "--json").json()
    assert (again["id"], [one["code"] for one in made["left_out"]]) == (made["id"], ["devices-left-out"])
    words = (tmp_path / "calls").read_text().split()
    assert (words[:3], words[5:7]) == (["build", "--file", f"{build}/Dockerfile"], [str(build), "push"])
    shown = home.must("base", "show", "built", "--json").json()
    assert (shown["source"], shown["config"]["entrypoint"]) == (str(build), ["/entry"])

    home.must("shell", "boxed", "-d", "--base", "built")
    look = "id -un; id -gn; pwd; echo $PATH; echo $WORD $LANG $WAYPOINT_BRANCH; cat /etc/marker; ls /bin/wc 2>&1 | cat"
    expected = [
        *("tester", "extra", "/srv/work", "/opt/own:/bin:/.waypoint/asking", "of the image C.UTF-8 boxed"),
        *("of the image", "ls: cannot access '/bin/wc': No such file or directory"),
    ]
    assert inside(home, "boxed", look).splitlines() == expected
    assert inside(home, "boxed", "echo $TERM") != "dumb\n"
    home.must("checkpoint", "plain", "-b", "boxed", "--tier", "files")
    home.must("shell", "other", "-d", "--from", "plain", "--user", "root")
    assert inside(home, "other", "id -un; pwd; echo $WORD") == "root\n/srv/work\nof the image\n"
    for branch in ("boxed", "other"):
        home.must("stop", branch, "--discard")


@pytest.mark.soak(part="matrix")
def test_what_is_no_image_makes_no_base(home: Home, tmp_path: Path) -> None:
    before = home.must("base", "list", "--json").json()
    for name in ("build", "tools", "none"):
        (tmp_path / name).mkdir()
    (tmp_path / "build/Containerfile").touch()
    (tmp_path / "build/fails").touch()
    (tmp_path / "tools/buildah").write_text(BUILDER.format(place=tmp_path))
    (tmp_path / "tools/buildah").chmod(0o755)
    (tmp_path / "no.tar").write_bytes(bytes(10240))
    put_layout(tmp_path / "hostile", Image([layer(Member("../up"))]))
    cases = {
        "build": (3, "none of the programs buildah and docker", {"PATH": str(tmp_path / "none")}),
        "build/Containerfile": (
            125,
            "'buildah build' has ended with status 3",
            {"PATH": f"{tmp_path}/tools:/usr/bin:/bin"},
        ),
        "no.tar": (2, "neither the file oci-layout", {}),
        "hostile": (10, "its path has '..'", {}),
        "missing": (2, "there is no such file", {}),
    }
    for name, (code, words, env) in cases.items():
        done = home.cli("base", "create", "bad", "--from", str(tmp_path / name), env=env)
        assert (done.code, words in done.stderr) == (code, True), (name, done)
    assert home.must("base", "list", "--json").json() == before


DOCKERFILE = """FROM scratch
COPY root /
ENV WORD=built
RUN mkdir -p /srv/work && echo made >/srv/work/file && rm /etc/marker
WORKDIR /srv/work
USER tester
"""


@pytest.mark.soak(part="workloads")
@pytest.mark.requires("buildah")
def test_buildah_builds_a_base(home: Home, tmp_path: Path) -> None:
    make_base(tmp_path / "root")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    settings = {
        "BUILDAH_ISOLATION": "chroot",
        "STORAGE_DRIVER": "vfs",
        "CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"),
    }
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
    )
    home.must("base", "create", "real", "--from", str(tmp_path), env=settings)
    home.must("shell", "real", "-d", "--base", "real")
    look = "id -un; pwd; cat file; echo $WORD; test -e /etc/marker || echo gone"
    assert inside(home, "real", look) == "tester\n/srv/work\nmade\nbuilt\ngone\n"
    home.must("stop", "real", "--discard")
