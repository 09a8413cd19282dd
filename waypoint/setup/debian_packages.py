"""Finding, downloading and unpacking packages of any Debian suite, without changing the machine's own packages.

apt gets a separate state here: no installed packages, its own lists and cache. So apt resolves all dependencies, even
the C library, and changes nothing outside the folder of that state. apt verifies signatures with Debian's archive
keyring. Sources: apt-get(8), apt.conf(5), sources.list(5), deb822(5).
"""

import hashlib
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from waypoint.linux.calls import programs
from waypoint.model.errors import HostLacks

DEFAULT_MIRROR = "http://deb.debian.org/debian"
KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
OWN_CRIU = "set WAYPOINT_CRIU to a CRIU of at least version 4.2 that you have installed"

# The end of the URL of a mirror of Debian itself. The URLs of security updates and old backports end differently.
_DEBIAN_URI = re.compile(r"/debian/?$|/debian\.list$")
_APT_HELPER = "/usr/lib/apt/apt-helper"  # part of the package apt
_EXPIRED = re.compile(r"Release file .* (is expired|is not valid)")
_FATAL_WORDS = re.compile(r"^(?:E|W): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Package:
    """A downloaded package file. `sha256`: the file's digest in hex."""

    name: str
    version: str
    architecture: str
    sha256: str
    path: Path


class AptFailed(HostLacks):
    """apt or dpkg-deb has failed. `said` contains its messages."""


def find_mirror() -> str:
    """The URL of the Debian mirror in the sources of this machine's apt, in any format; DEFAULT_MIRROR if there is
    none.
    """
    updated = _apt_get("indextargets", "--format", "$(LABEL) $(REPO_URI)").stdout.splitlines()
    labelled = [line.removeprefix("Debian ") for line in updated if line.startswith("Debian ")]
    # apt knows a mirror's label only after it has downloaded the mirror's lists. Before that, the URL must do.
    listed = _apt_get("indextargets", "--no-release-info", "--format", "$(REPO_URI)").stdout.splitlines()
    by_address = [uri for uri in listed if _DEBIAN_URI.search(uri)]
    return [*labelled, *by_address, DEFAULT_MIRROR][0]


def find_keyring() -> Path:
    """The file with Debian's archive keyring. Raises HostLacks if it is not installed, as on Ubuntu."""
    for keyring in KEYRINGS:
        if keyring.exists():
            return keyring
    said = "Debian's archive keyring is not installed, so packages cannot be verified"
    raise HostLacks("install", "CRIU", said, f"apt-get install debian-archive-keyring, or {OWN_CRIU}")


def require_tools() -> None:
    """Raise HostLacks on a machine without apt-get or dpkg-deb."""
    for name in ("apt-get", "dpkg-deb"):
        if programs.find(name) is None:
            raise HostLacks(
                "install", "CRIU", f"the program {name}, which downloads Debian's packages, is not installed", OWN_CRIU
            )


class Archive:
    """One suite of a mirror. apt keeps its state and the downloads in `folder`, which the caller removes."""

    def __init__(self, folder: Path, *, mirror: str, suite: str, keyring: Path) -> None:
        self._suite = suite
        self._mirror = mirror
        self._folder = folder
        self._config = folder / "apt.conf"
        self._downloads = folder / "cache/archives"
        (folder / "lists/partial").mkdir(parents=True)
        (self._downloads / "partial").mkdir(parents=True)
        (folder / "status").touch()
        # target=Packages: download only the list of packages, not translations, contents or icons.
        line = f"deb [signed-by={keyring} target=Packages] {mirror} {suite} main\n"
        (folder / "sources.list").write_text(line)
        self._config.write_text(_CONFIG.format(folder=folder))

    def update(self, say: Callable[[str], None]) -> None:
        """Download the suite's list of packages."""
        done = self._apt("update")
        if done.returncode != 0 and _EXPIRED.search(done.stderr):
            # The signature is verified all the same, but the list may not be the newest.
            say(f"the mirror's list of {self._suite} is out of date; it is used nevertheless")
            done = self._apt("-o", "Acquire::Check-Date=false", "update")  # turns Check-Valid-Until off too
        if done.returncode != 0:
            raise self._failed(f"download Debian's list of packages ({self._suite}) from", done.stderr)

    def download(self, *names: str) -> list[Package]:
        """Download the packages `names` and all that they depend on, as if nothing were installed. Returns all, sorted
        by name.
        """
        done = self._apt("-y", "--no-install-recommends", "--download-only", "install", *names)
        if done.returncode != 0:
            what = f"the package {names[0]}" if len(names) == 1 else f"{len(names)} packages"
            raise self._failed(f"download {what} ({self._suite}) from", done.stderr)
        return sorted((_describe(path) for path in self._downloads.glob("*.deb")), key=lambda found: found.name)

    def fetch(self, path: str, sha256: str, target: Path) -> None:
        """Download the file `path` of the mirror to `target`, with apt's proxies. Its digest must be `sha256`."""
        uri = f"{self._mirror.rstrip('/')}/{path}"
        done = run([_APT_HELPER, "-c", str(self._config), "download-file", uri, str(target), f"SHA256:{sha256}"])
        if done.returncode != 0:
            raise self._failed(f"download {path} from", done.stderr)

    def _apt(self, *args: str) -> subprocess.CompletedProcess[str]:
        # apt reads the file of -c last, so it overrides the machine's configuration. The machine's proxies still apply.
        return _apt_get("-q", "-c", str(self._config), *args)

    def _failed(self, tried: str, stderr: str) -> AptFailed:
        words = list(dict.fromkeys(_FATAL_WORDS.findall(stderr))) or stderr.strip().splitlines()[-1:]
        return AptFailed(
            tried, self._mirror, "; ".join(words[:3]) or "apt-get failed without a message", _next_step(stderr)
        )


def unpack(packages: list[Package], root: Path) -> None:
    """Unpack the files of all packages into `root`. No script of a package runs."""
    root.mkdir(exist_ok=True)
    for package in packages:
        done = run(["dpkg-deb", "-x", str(package.path), str(root)])
        if done.returncode != 0:
            raise AptFailed("unpack the package", package.path.name, done.stderr.strip(), _next_step(done.stderr))


_CONFIG = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
#clear APT::Default-Release;
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::State::extended_states "{folder}/extended_states";
Dir::Cache "{folder}/cache";
Dir::Cache::archives "{folder}/cache/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Log "{folder}";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Check-Date "true";
Acquire::Check-Valid-Until "true";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
"""


def _next_step(stderr: str) -> str:
    if "No space left on device" in stderr or "enough free space" in stderr:
        return "free some space on the disk of the home, and run setup again"
    if "Unable to locate package" in stderr:
        return OWN_CRIU
    return f"check the network and run it again, or {OWN_CRIU}"


def _describe(path: Path) -> Package:
    done = run(["dpkg-deb", "-W", "--showformat=${Package} ${Version} ${Architecture}", str(path)])
    if done.returncode != 0:
        raise AptFailed("read the package", path.name, done.stderr.strip(), _next_step(done.stderr))
    name, version, architecture = done.stdout.split()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Package(name, version, architecture, digest, path)


def _apt_get(*args: str) -> subprocess.CompletedProcess[str]:
    return run(["apt-get", *args])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `command` with this process's environment (for its proxies), but with messages in English.

    setpriv makes the kernel kill the program if this process is killed with SIGKILL.
    """
    guard = ["setpriv", "--pdeathsig", "KILL"] if programs.find("setpriv") else []
    words = [*guard, "env", "LC_ALL=C", f"PATH={programs.SEARCH_PATH}", *command]
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
