"""Makes a branch with all packages, from whose files all workloads start."""

from collections.abc import Iterable

from tests.workloads.workload import NODE, PYTHON, Workload
from waypoint.client import Client

# policy-rc.d: packages do not start their servers.
_DEBIAN = """
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update && apt-get -qq install -y --no-install-recommends "$@" && apt-get clean
"""
_NPM = f"""
mkdir -p {NODE.removesuffix("/node_modules/.bin")} && cd {NODE.removesuffix("/node_modules/.bin")} &&
npm install --no-fund --no-audit "$@"
"""
_PYPI = f'python3 -m venv {PYTHON.removesuffix("/bin")} && {PYTHON}/pip install -q "$@"'
MACHINE = "machine"


def install(client: Client, rows: Iterable[Workload]) -> None:
    """Make the branch MACHINE with the packages of all rows. Takes some minutes."""
    debian = sorted({package for row in rows for package in row.debian})
    npm = sorted({package for row in rows for package in row.npm})
    pypi = sorted({package for row in rows for package in row.pypi})
    with client.start(MACHINE, user="root", cwd="/") as session:
        for text, packages in ((_DEBIAN, debian), (_NPM, npm), (_PYPI, pypi)):
            done = session.run("bash", "-c", text, "install", *packages)
            assert done.exit == 0, f"{packages}: {done.stdout[-2000:]!r}{done.stderr[-2000:]!r}"
