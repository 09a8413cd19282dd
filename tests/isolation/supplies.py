"""Makes small packages for apt, pip and npm, which can be installed in a session without network access. Also fetches
real packages of the distribution, in a session with the machine's network.
"""

import hashlib
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.homes import Home

PORT = 8471
"""The loopback port in a session on which `python3 -m http.server` serves the folder filled by `make_registry`."""
URL = f"http://127.0.0.1:{PORT}"
REAL = ("sudo", "cron", "at", "screen", "inotify-tools", "redis-server", "openssh-server")
INSTALL_S = 300.0  # downloads packages

_CONTROL = """Package: wptestd
Version: 1
Architecture: all
Maintainer: nobody <nobody@localhost>
Description: a daemon with a user of its own
"""
_POSTINST = """#!/bin/sh
set -e
useradd --system --no-create-home --shell /usr/sbin/nologin wptestd
chown wptestd /var/lib/wptestd
service wptestd start
"""
_SERVICE = """#!/bin/sh
### BEGIN INIT INFO
# Provides: wptestd
# Required-Start:
# Required-Stop:
# Default-Start: 2
# Default-Stop: 0
### END INIT INFO
d="start-stop-daemon --pidfile /run/wptestd.pid"
case $1 in
    start) $d --start --background --make-pidfile --chuid wptestd --chdir /var/lib/wptestd --exec /bin/sleep -- 4000 ;;
    stop) $d --stop ;;
    status) $d --status ;;
esac
"""
_WHEEL = {
    "wptest.py": "ANSWER = 42\n",
    "wptest-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: wptest\nVersion: 1\n",
    "wptest-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: wptest\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "wptest-1.dist-info/RECORD": "",
}


def make_registry(folder: Path) -> None:
    """Fill `folder` with a repository for apt, an index for pip and a registry for npm, one package in each."""
    _make_deb(folder)
    _make_wheel(folder)
    _make_npm(folder)


def _make_deb(folder: Path) -> None:
    tree = folder / "tree"
    files = {"DEBIAN/control": _CONTROL, "DEBIAN/postinst": _POSTINST, "etc/init.d/wptestd": _SERVICE}
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
        (tree / name).chmod(0o644 if name == "DEBIAN/control" else 0o755)
    (tree / "var/lib/wptestd").mkdir(parents=True)
    deb = folder / "debs/wptestd.deb"
    deb.parent.mkdir()
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, deb], check=True, capture_output=True)
    content = deb.read_bytes()
    facts = f"Filename: ./wptestd.deb\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    (deb.parent / "Packages").write_text(_CONTROL + facts)


def _make_wheel(folder: Path) -> None:
    place = folder / "simple/wptest"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / "wptest-1-py3-none-any.whl", "w") as wheel:
        for name, text in _WHEEL.items():
            wheel.writestr(name, text)
    (place / "index.html").write_text('<a href="wptest-1-py3-none-any.whl">wptest-1-py3-none-any.whl</a>')


def _make_npm(folder: Path) -> None:
    package = {"name": "wptest", "version": "1.0.0", "main": "index.js", "scripts": {"install": "echo ran >ran"}}
    place = folder / "package"
    place.mkdir()
    (place / "package.json").write_text(json.dumps(package))
    (place / "index.js").write_text("module.exports = 42\n")
    with tarfile.open(folder / "wptest-1.0.0.tgz", "w:gz") as archive:
        archive.add(place, "package")
    version = package | {"dist": {"tarball": f"{URL}/wptest-1.0.0.tgz"}}
    facts = {"name": "wptest", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (folder / "wptest").write_text(json.dumps(facts))


def install_real(home: Home, branch: str, folder: Path) -> None:
    """Install in a session the packages that `fetch_real` has put into `folder`."""
    install = f"apt-get install -yqq --no-install-recommends {folder}/*.deb"
    done = home.cli(
        "run", "-b", branch, "--env", "DEBIAN_FRONTEND=noninteractive", "--", "sh", "-c", install, timeout_s=INSTALL_S
    )
    assert done.code == 0, done.stdout + done.stderr


def fetch_real(home: Home, folder: Path) -> None:
    """Download the packages REAL and their dependencies from the distribution into `folder`."""
    options = "-o Dir::Cache::archives=/fetched -o APT::Sandbox::User=root -o Acquire::Retries=3"
    fetch = f"apt-get {options} install -yqq --no-install-recommends --download-only {' '.join(REAL)}"
    home.must("shell", "fetch", "-d", "--user", "root", "--net", "host", "--bind", f"{folder}:/fetched")
    try:
        words = ["sh", "-c", f"{fetch} || {{ apt-get update -qq && {fetch}; }}"]
        home.must("run", "-b", "fetch", "--", *words, timeout_s=INSTALL_S)
    finally:
        home.must("stop", "fetch", "--discard")
