"""Real sessions, of root and of a user, cannot make the refused system calls, after a start, a fork and a restore. All
other calls work. test_refused.py tests the list itself.

In a home whose config.json disables the filter, the refused calls work; this shows that the filter refuses them.
"""

import contextlib
import errno
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import places
from tests.acceptance.people import Person
from tests.acceptance.sessions import begin, facts
from tests.homes import CLI_TIMEOUT_S, Home, open_home
from waypoint.launch.walls.call_numbers import I386, NUMBERS
from waypoint.linux.calls.libc import MACHINE

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "seccomp")]

ROOT, USER = "root", "user"

# Makes calls with harmless arguments, and prints the errno of each; 0: the call succeeded.
PROBE = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def tried(call):
    return ctypes.get_errno() if call() < 0 else 0
found = {}
for name, (number, *arguments) in json.loads(sys.argv[1]).items():
    found[name] = tried(lambda: libc.syscall(*(ctypes.c_long(one) for one in (number, *arguments))))
print(json.dumps(found))
"""
# Like PROBE, with the system calls of 32-bit programs: `mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80`.
PROBE_I386 = """
import ctypes, json, mmap, sys
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("53 89f8 89f3 89d1 cd80 5b c3"))
call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)(
    ctypes.addressof(ctypes.c_char.from_buffer(code)))
found = {}
for name, (number, *arguments) in json.loads(sys.argv[1]).items():
    found[name] = max(0, -call(number, *(*arguments, 0, 0)[:2]))
print(json.dumps(found))
"""

KEYCTL_GET_KEYRING_ID, SESSION_KEYRING = 0, -3
NEWUSER, NEWNS = 0x10000000, 0x00020000
# Without a filter, none of these gives EPERM to a session's root: the calls succeed, or fail for their arguments.
ARGUMENTS: dict[str, tuple[int, ...]] = {
    "add_key": (),
    "clone3": (0, 88),
    "io_uring_setup": (1, 0),
    "ioctl": (0, 0x5412, 0),
    "memfd_create": (0, 4),
    "keyctl": (KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0),
    "personality": (0x0400000,),
    "request_key": (),
    "setns": (-1, 0),
    "socket": (40, 1, 0),
    "socketpair": (40, 1, 0),
    "unshare": (NEWUSER,),
    "umount2": (0, 1 << 30),
}
ELSE = {"clone3": errno.ENOSYS, "memfd_create": errno.ENOMEM}
# The calls that `--allow userns` allows.
OF_NAMESPACES = {"setns", "unshare", "umount2"}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("calls") as made:
        yield made


@pytest.fixture(scope="module")
def unfiltered() -> Iterator[Home]:
    with open_home("unfiltered", seccomp=False) as made:
        yield made


def inside(home: Home, branch: str, text: str, timeout_s: float = CLI_TIMEOUT_S) -> str:
    done = home.cli("exec", "-b", branch, "--", text, timeout_s=timeout_s)
    assert done.code == 0, f"{text}: exit {done.code}: {done.stdout}{done.stderr}"
    return done.stdout


def numbered(calls: dict[str, tuple[int, ...]], architecture: str) -> str:
    numbers = NUMBERS[architecture]
    return json.dumps({name: (numbers[name], *given) for name, given in calls.items() if name in numbers})


def answers(home: Home, branch: str, calls: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the errno of each call in the session's shell, and check that `waypoint run` gets the same."""
    words = ["python3", "-c", PROBE, numbered(calls, MACHINE)]
    # /dev/null: the ioctl TIOCSTI, if not refused, would type into the terminal
    in_shell: dict[str, int] = json.loads(inside(home, branch, f"{shlex.join(words)} </dev/null"))
    from_outside = home.must("run", "-b", branch, "--", *words).json()
    assert from_outside == in_shell
    return in_shell


def filters_of(session: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the seccomp mode and number of filters of the session's processes, and check that they may gain rights."""
    group = next(Path("/sys/fs/cgroup").rglob(session["id"]))
    found = set()
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert lines["NoNewPrivs"] == "0"
            found.add((lines["Seccomp"], lines["Seccomp_filters"]))
    return found


def expect_refusals(home: Home, branch: str) -> None:
    assert filters_of(facts(home, branch)) == {("2", "1")}
    assert answers(home, branch, ARGUMENTS) == {name: ELSE.get(name, errno.EPERM) for name in ARGUMENTS}
    others = {*ARGUMENTS, "clone", "fcntl", "mmap", "shmget", "vhangup"}
    everything = dict.fromkeys(set(NUMBERS[MACHINE]) - others, ())
    assert set(answers(home, branch, everything).values()) == {errno.EPERM}


def expect_after_start_fork_and_restore(home: Home, branch: str, expect: Any) -> None:
    """Call `expect` for the branch's session, a fork of it, and the session restored in place."""
    expect(home, branch)
    inside(home, branch, "sleep 1000 & before=$!")
    home.must("checkpoint", f"{branch}-c", "-b", branch, "--tier", "live")
    home.must("fork", f"{branch}-c", f"{branch}-f")
    expect(home, f"{branch}-f")
    home.must("restore", f"{branch}-c")
    expect(home, branch)
    inside(home, branch, "kill $before")
    for name in (branch, f"{branch}-f"):
        home.must("stop", name, "--discard")


@pytest.mark.soak(part="walls")
def test_without_a_filter_the_calls_are_not_refused(unfiltered: Home) -> None:
    """This shows that the filter causes the refusals."""
    done = unfiltered.must("shell", "main", "-d", "--json", "--user", "root")
    session = done.json()
    assert (done.stderr, session["seccomp"], session["why_no_seccomp"]) == ("", "none", None)
    assert filters_of(session) == {("0", "0")}
    assert "all of the kernel's\n" in show_after_checkpoint(unfiltered, "main")
    rows = {row["capability"]: row for row in unfiltered.cli("doctor", "--json").json()}
    assert rows["system calls of sessions"]["state"] == "degraded"
    assert rows["refusing system calls (seccomp)"]["state"] == "ok"
    assert errno.EPERM not in answers(unfiltered, "main", ARGUMENTS).values()
    assert inside(unfiltered, "main", "unshare -Ur id -u") == "0\n"
    unfiltered.must("stop", "main", "--discard")


@pytest.mark.requires("criu")
@pytest.mark.parametrize("who", [ROOT, USER])
def test_calls_are_refused_after_start_fork_and_restore(home: Home, person: Person, who: str) -> None:
    user = person.name if who == USER else "root"
    session = begin(home, f"life-{who}", "--user", user)
    assert (session["seccomp"], session["why_no_seccomp"]) == ("default", None)
    expect_after_start_fork_and_restore(home, f"life-{who}", expect_refusals)


@pytest.mark.soak(part="matrix")
@pytest.mark.skipif(MACHINE != "x86_64", reason="32-bit programs make their calls differently")
@pytest.mark.requires("i386")
def test_calls_of_32_bit_programs_are_refused_too(home: Home, unfiltered: Home) -> None:
    calls = {**{name: given for name, given in ARGUMENTS.items() if name != "ioctl"}, "socketcall": (1, 0)}
    words = ["python3", "-c", PROBE_I386, numbered(calls, I386)]
    expected = {name: ELSE.get(name, errno.EPERM) for name in calls}
    for place, is_filtered in ((home, True), (unfiltered, False)):
        begin(place, "i386")
        found = place.must("run", "-b", "i386", "--", *words).json()
        assert found == expected if is_filtered else errno.EPERM not in found.values()
        place.must("stop", "i386", "--discard")


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86-64 has a second set of numbers")
def test_calls_by_x32_numbers_do_not_exist(home: Home) -> None:
    begin(home, "x32")
    calls = json.dumps({name: (0x40000000 | NUMBERS[MACHINE][name],) for name in ("mount", "keyctl", "ioctl")})
    found = home.must("run", "-b", "x32", "--", "python3", "-c", PROBE, calls).json()
    assert set(found.values()) == {errno.ENOSYS}
    home.must("stop", "x32", "--discard")


def expect_namespaces(home: Home, branch: str) -> None:
    session = facts(home, branch)
    assert (session["seccomp"], session["why_no_seccomp"], filters_of(session)) == ("userns", None, {("2", "1")})
    found = answers(home, branch, ARGUMENTS)
    assert errno.EPERM not in {found[name] for name in OF_NAMESPACES}
    expected = {name: ELSE.get(name, errno.EPERM) for name in set(ARGUMENTS) - OF_NAMESPACES}
    assert {name: found[name] for name in expected} == expected
    assert inside(home, branch, "unshare -Urm sh -c 'mount -t tmpfs none /mnt && id -u'") == "0\n"


@pytest.mark.soak(part="matrix")
@pytest.mark.requires("criu", "userns")
@pytest.mark.parametrize("who", [ROOT, USER])
def test_allow_userns_holds_after_start_fork_and_restore(home: Home, person: Person, who: str) -> None:
    begin(home, f"ns-{who}", "--user", person.name if who == USER else "root", "--allow", "userns")
    expect_after_start_fork_and_restore(home, f"ns-{who}", expect_namespaces)


@pytest.mark.soak(part="walls")
@pytest.mark.requires("userns")
def test_allow_userns_does_not_allow_cgroup_mounts(home: Home, unfiltered: Home) -> None:
    """In a session with the host's ids, root could lift its limits in the cgroups of the host.

    The home without a filter shows that the filter refuses this.
    """
    with open_home("cgroups", host_ids=True) as by_ids:
        for place in (home, by_ids, unfiltered):
            begin(place, "groups", "--allow", "userns")
            for fstype in hierarchies():
                mount = f"mount -t {fstype} none /mnt"
                done = place.cli("run", "-b", "groups", "--", "unshare", "-UrmC", "sh", "-c", mount)
                assert (done.code == 0) == (place is unfiltered), (fstype, done)
                done = place.cli("run", "-b", "groups", "--", "unshare", "-Urm", "sh", "-c", mount)
                assert (done.code, "permission denied" in done.stderr) == (32, True), (fstype, done)
            place.must("stop", "groups", "--discard")


def hierarchies() -> list[str]:
    """Return types and options of mount(8) for the cgroup hierarchies of the machine."""
    fields = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    kinds = [(fstype, options.split(",")) for _, _, fstype, options, *_ in fields if fstype in ("cgroup", "cgroup2")]
    named = {f"cgroup -o {options[-1]}" for fstype, options in kinds if fstype == "cgroup"}
    return sorted(named | {fstype for fstype, _ in kinds if fstype == "cgroup2"})


@pytest.mark.requires("criu", "userns")
def test_a_branch_keeps_and_shows_its_allowances(home: Home) -> None:
    begin(home, "kept", "--allow", "userns")
    assert "with namespaces and mounts (--allow userns)" in show_after_checkpoint(home, "kept")
    rows = {row["capability"]: row for row in home.cli("doctor", "--json").json()}
    assert "kept may make namespaces and mounts" in rows["system calls of sessions"]["why"]
    home.must("stop", "--files", "kept")
    assert begin(home, "kept")["seccomp"] == "userns"
    home.must("checkpoint", "kept-c", "-b", "kept", "--park")
    done = home.cli("shell", "kept", "-d", "--user", "root", "--allow", "userns")  # the same allowance as before
    assert done.code == 0, done.stderr
    home.must("stop", "kept", "--discard")


def show_after_checkpoint(home: Home, branch: str) -> str:
    home.must("checkpoint", f"{branch}-shown", "-b", branch)
    return home.must("show", branch).stdout


@pytest.mark.requires("criu")
def test_restored_processes_cannot_get_another_allowance(home: Home) -> None:
    begin(home, "fixed")
    assert "without namespaces and mounts" in show_after_checkpoint(home, "fixed")
    home.must("checkpoint", "fixed-c", "-b", "fixed", "--park")
    done = home.cli("shell", "fixed", "-d", "--user", "root", "--allow", "userns")
    assert (done.code, "so --allow cannot be changed" in done.stderr) == (2, True), done
    home.must("branch", "delete", "fixed")


@pytest.mark.soak(part="walls")
@pytest.mark.requires("criu")
def test_processes_captured_without_a_filter_are_restored_without_a_filter() -> None:
    """A session that gets a new shell instead has a filter."""
    with open_home("earlier", seccomp=False) as home:
        begin(home, "old")
        home.must("checkpoint", "kept", "-b", "old", "--tier", "live")
        home.must("stop", "--files", "old")
        home.must("daemon", "stop")
        config = json.loads((home.path / "config.json").read_text())
        del config["seccomp"]
        (home.path / "config.json").write_text(json.dumps(config))
        home.must("restore", "kept")
        assert facts(home, "old")["why_no_seccomp"] == "its processes had none when they were captured"
        assert errno.EPERM not in answers(home, "old", ARGUMENTS).values()
        home.must("checkpoint", "again", "-b", "old", "--tier", "live")
        assert home.must("show", "again", "--json").json()["layers"]["processes"]["seccomp"] == "none"
        home.must("restore", "kept", "-b", "new", "--only", "files")
        expect_refusals(home, "new")


def behind_a_filter(home: Home, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run `waypoint ARGS`, and the daemon that it starts, with a seccomp filter that makes seccomp(2) fail."""
    program = (
        f"import os, sys; sys.path.insert(0, {str(places.ROOT)!r})\n"
        "from waypoint.linux.calls import libc, seccomp\n"
        "from waypoint.launch.walls.call_numbers import AUDIT_NUMBERS\n"
        "call, allow = libc.SYSCALLS['seccomp'], seccomp.ALLOW\n"
        f"calls = {{0: allow, call: seccomp.refuse({errno.EINVAL}), call + 1: allow}}\n"
        "seccomp.install(seccomp.assemble({AUDIT_NUMBERS[libc.MACHINE]: calls}, allow))\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    words = [sys.executable, "-c", program, *home.argv(*args)]
    return subprocess.run(words, env=home.env, capture_output=True, text=True, timeout=CLI_TIMEOUT_S, check=False)


@pytest.mark.soak(part="walls")
def test_a_kernel_without_filters_is_reported() -> None:
    with open_home("without") as home:
        home.must("daemon", "stop")
        started = behind_a_filter(home, "shell", "weak", "-d", "--json", "--user", "root")
        assert started.returncode == 0, started.stderr
        session = json.loads(started.stdout)
        why = "the kernel has no filters of system calls: seccomp: Invalid argument"
        assert (session["seccomp"], session["why_no_seccomp"]) == ("none", why)
        assert f"without a filter of system calls: {why}" in started.stderr
        assert filters_of(session) == {("2", "1")}  # the filter of the daemon
        rows = {row["capability"]: row for row in home.cli("doctor", "--json").json()}
        for name in ("refusing system calls (seccomp)", "system calls of sessions"):
            assert (rows[name]["state"], "Invalid argument" in rows[name]["why"]) == ("degraded", True), rows[name]
        home.must("stop", "weak", "--discard")
        home.must("daemon", "stop")


@pytest.mark.requires("criu")
def test_the_next_daemon_keeps_the_filter(home: Home) -> None:
    begin(home, "adopted")
    home.must("daemon", "stop")
    assert facts(home, "adopted")["seccomp"] == "default"
    expect_refusals(home, "adopted")
    home.must("stop", "adopted", "--discard")


@pytest.mark.soak(part="walls")
@pytest.mark.requires("network", "userns")
def test_a_sandbox_in_a_session_needs_an_allowance(home: Home) -> None:
    """The sandbox is bubblewrap, installed from a package."""
    bwrap = "bwrap --ro-bind / / --dev /dev --tmpfs /tmp --unshare-user --unshare-pid --unshare-ipc id -u"
    install = "apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null"
    for branch, options, code in (("jail", (), 1), ("jails", ("--allow", "userns"), 0)):
        begin(home, branch, "--net", "host", *options)
        inside(home, branch, install, 300.0)  # the download may take long
        assert home.cli("run", "-b", branch, "--", "sh", "-c", bwrap).code == code
        home.must("stop", branch, "--discard")


def test_an_unknown_allowance_is_refused(home: Home) -> None:
    done = home.cli("shell", "no", "-d", "--allow", "everything")
    assert (done.code, "userns" in done.stderr) == (2, True), done
