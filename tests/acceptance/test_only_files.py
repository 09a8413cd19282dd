"""`restore NAME --only files`: the files are restored, the shell and the processes continue."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.answers import unusual
from tests.homes import Home
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

MAKE = r"""mkdir -p /srv/d/e /opt/x; cd /srv/d
echo first > a; ln a a2; echo b > e/b; mkfifo f; truncate -s 10M sparse; ln -s a l; printf x > $'odd\nname'
chown 1000:1000 e; chmod 700 e; python3 -c 'import os; os.setxattr("a", "user.kind", b"value")'
rm -rf /usr/share/doc/bash; rm -rf /usr/share/doc/dash; mkdir /usr/share/doc/dash; echo new > /usr/share/doc/dash/new
mv /etc/issue /etc/issue.moved; echo changed > /etc/debian_version; cd /srv"""

SPOIL = r"""cd /srv; rm -rf d /opt/x; mkdir d; echo other > d/a; echo z > d/z; mkdir /usr/share/doc/bash
echo q > /usr/share/doc/bash/q; rm -rf /usr/share/doc/dash; mv /etc/issue.moved /etc/issue; rm /etc/debian_version
ln -s /etc d/e; touch /srv/more"""

# Lists kind, size, mode, owner, time, link count, link target, content and attributes of every file.
PICTURE = r"""python3 - <<'END'
import hashlib, os, stat
docs = "/usr/share/doc"
for top in ["/srv", "/opt/x", docs + "/bash", docs + "/dash", "/etc/issue", "/etc/issue.moved", "/etc/debian_version"]:
    for folder, folders, names in [("", [], [top]), *os.walk(top)]:
        for path in sorted(filter(os.path.lexists, (os.path.join(folder, name) for name in folders + names))):
            f = os.lstat(path)
            kind = stat.S_IFMT(f.st_mode)
            size, links = (0, 0) if kind == stat.S_IFDIR else (f.st_size, f.st_nlink)
            held = os.readlink(path) if kind == stat.S_IFLNK else ""
            if kind == stat.S_IFREG:
                attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
                held = hashlib.sha256(open(path, "rb").read()).hexdigest(), attributes
            print(ascii(path), oct(f.st_mode), size, links, f.st_uid, f.st_gid, f.st_mtime_ns, held)
END"""


@pytest.fixture
def branch(home: Home) -> Iterator[str]:
    with session(home, "root") as name:
        yield name


def test_every_detail_of_the_files_is_restored_and_processes_continue(home: Home, branch: str) -> None:
    inside(home, branch, f"{MAKE}; X=before; sleep 1000 &")
    picture = inside(home, branch, PICTURE)
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    inside(home, branch, f"X=after; {SPOIL}")
    assert inside(home, branch, PICTURE) != picture
    pid = inside(home, branch, "echo $$ $!")
    home.must("restore", f"{branch}-cp", "-b", branch, "--only", "files")
    assert inside(home, branch, PICTURE) == picture
    assert inside(home, branch, "echo $$ $!") == pid
    assert inside(home, branch, "echo $X; jobs -r | wc -l; stat -c %h /srv/d/a; du -k /srv/d/sparse").split()[:4] == [
        "after",
        "1",
        "2",
        "0",
    ]


def test_a_restore_of_files_can_be_undone(home: Home, branch: str) -> None:
    inside(home, branch, "echo one > /srv/file")
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    inside(home, branch, "echo two > /srv/file; X=kept")
    home.must("restore", f"{branch}-cp", "-b", branch, "--only", "files")
    assert inside(home, branch, "cat /srv/file; echo $X") == "one\nkept\n"
    home.must("undo")
    assert inside(home, branch, "cat /srv/file; echo $X") == "two\nkept\n"


@pytest.mark.soak(part="load")
def test_the_bytes_written_and_the_frozen_time_are_reported(home: Home, branch: str) -> None:
    cp = f"{branch}-cp"
    home.must("checkpoint", cp, "-b", branch)
    inside(home, branch, "rm -rf /usr/share/doc")
    wanted = sum(path.lstat().st_size for path in Path("/usr/share/doc").rglob("*") if path.is_file())
    count = sum(1 for _ in Path("/usr/share/doc").rglob("*"))
    told = home.must("restore", cp, "-b", branch, "--only", "files").stderr
    changed, mebibytes, stood = re.search(  # type: ignore[union-attr]
        r"^files: (\d+) changed, ([0-9.]+) MiB written; the session was paused for ([0-9.]+) s\n", told
    ).groups()
    assert count <= int(changed) < count + 100
    assert float(mebibytes) == pytest.approx(wanted / (1 << 20), rel=0.2)
    assert 0 < float(stood) < PATIENCE_S
    inside(home, branch, "rm -rf /usr/share/doc")
    done = home.must("restore", cp, "-b", branch, "--only", "files", "--json").json()["exchanged"]
    assert set(done) == {"changed", "written_bytes", "paused_ms"}
    assert count <= done["changed"] < count + 100


def test_only_changed_files_are_replaced_and_programs_that_have_them_open_are_reported(home: Home, branch: str) -> None:
    inside(home, branch, "mkdir /srv/d; cd /srv; echo one > file; echo same > log; ln log log2; echo w > d/work; cd /")
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    inside(home, branch, "exec 8>>/srv/log; echo two > /srv/file; chmod 600 /srv/d/work; mkdir /srv/new")
    pid = inside(
        home, branch, "cd /srv/new; exec 7</srv/file; stat -c '%i %Z' /srv/log /srv/log2 > /dev/shm/before; echo $$"
    )
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--only", "files", "--json").json()
    assert [(one["code"], one["subject"], one["detail"]) for one in unusual(done["degraded"])] == [
        ("replaced-files-open", "/srv/file, /srv/new", f"bash (pid {pid.strip()})")
    ]
    assert done["exchanged"]["changed"] == 3
    assert inside(home, branch, "cd /; stat -c '%i %Z' /srv/log /srv/log2 | cmp - /dev/shm/before") == ""
    assert inside(home, branch, "echo more >&8; cat /srv/log2; stat -c %a /srv/d/work") == "same\nmore\n644\n"
    assert inside(home, branch, "cat <&7; cat /srv/file") == "two\none\n"


def test_a_file_that_no_program_uses_or_that_has_the_same_content_keeps_its_inode(home: Home, branch: str) -> None:
    make = (
        "echo one > short; seq 9000 > long; truncate -s 1M sparse; printf x | dd of=sparse seek=5000 bs=1 conv=notrunc"
    )
    inside(home, branch, f"mkdir /srv/d; cd /srv/d; {make}; cp /usr/bin/sleep runs; seq 8000 > read; cd /")
    show = "cd /srv/d; stat -c '%n %s %a %y' *; sha256sum *; du -k sparse; cd /"
    before, inodes = inside(home, branch, show), inside(home, branch, "stat -c %i /srv/d/*")
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    inside(home, branch, "cd /srv/d; seq 999 >> short; echo > long; echo y > sparse; echo >> runs; ./runs 1000 & cd /")
    inside(home, branch, "exec 8<>/srv/d/read; seq 8000 > /srv/d/read")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--only", "files", "--json").json()
    assert [(one["code"], one["subject"]) for one in unusual(done["degraded"])] == [
        ("replaced-files-open", "/srv/d/runs")
    ]
    assert inside(home, branch, show) == before
    now = inside(home, branch, "stat -c %i /srv/d/*").split()
    assert [one == other for one, other in zip(now, inodes.split(), strict=True)] == [True, True, False, True, True]


def test_after_a_restore_of_many_files_the_next_one_finds_all_later_changes(home: Home, branch: str) -> None:
    with tempfile.TemporaryDirectory(prefix="waypoint-only-files-", dir="/srv") as folder:
        shared = Path(folder, "shared")
        shared.write_text("one\n")
        make = "for i in $(seq 600); do seq $i > $i; done; mkdir d; seq 9 > d/inner"
        inside(home, branch, f"echo > {folder}/own; mkdir /srv/many; cd /srv/many; {make}; cd /")
        show = f"cd /srv/many; find . -printf '%p %y %m %T@\n' | sort; sha256sum * d/*; cat {shared}; ls {folder}; cd /"
        before = inside(home, branch, show)
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        inside(home, branch, f"cd /srv/many; for i in $(seq 600); do echo >> $i; done; echo >> {shared}; cd /")
        restore = "restore", f"{branch}-cp", "-b", branch, "--only", "files", "--json"
        assert home.must(*restore).json()["exchanged"]["changed"] == 601  # not read here, for that changes atimes
        changes = "echo > 7; rm 8; mv 9 d; chmod 600 10; mv d e; ln -f 11 12; mkdir d; echo > new"
        inside(home, branch, f"cd /srv/many; {changes}; cd /")
        shared.write_text("two\n")
        home.must(*restore)
        assert inside(home, branch, show) == before.replace("\none\n", "\ntwo\n")
        inside(home, branch, "echo > /srv/many/13")
        assert home.must(*restore).json()["exchanged"]["changed"] == 1


def test_restored_files_keep_their_owner(home: Home, person: Person) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "echo one > ~/file; mkdir ~/folder")
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        inside(home, branch, "rm -r ~/file ~/folder")
        home.must("restore", f"{branch}-cp", "-b", branch, "--only", "files")
        shown = inside(home, branch, "stat -c '%U %F' ~/file ~/folder; echo more >> ~/file; cat ~/file")
        assert shown == f"{person.name} regular file\n{person.name} directory\none\nmore\n"


@pytest.mark.parametrize("exists", [True, False], ids=["ended", "new"])
def test_a_branch_that_is_not_live_starts_with_the_files_and_a_new_shell(
    home: Home, branch: str, *, exists: bool
) -> None:
    inside(home, branch, "kept=yes; echo one > /srv/file")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "live")
    inside(home, branch, "rm /srv/file")
    home.must("stop", "--files", branch)
    on = branch if exists else f"{branch}-new"
    home.must("restore", f"{branch}-cp", "-b", on, "--only", "files")
    assert inside(home, on, "echo [$kept]; cat /srv/file") == "[]\none\n"
    home.must("undo")
    assert on not in home.must("ps").stdout.split()


@pytest.mark.soak(part="load")
def test_folders_nested_deeper_than_the_recursion_limit_are_removed_and_restored(home: Home, branch: str) -> None:
    make = "import os\nfor i in range(1100): os.mkdir('k'); os.chdir('k')\nopen('end', 'w').close()"
    depth = "find /tmp -name end -printf '%d\\n'"
    inside(home, branch, f'cd /tmp; python3 -c "{make}"; cd /run/waypoint; python3 -c "{make}"; cd /')
    home.must("checkpoint", f"{branch}-cp", "-b", branch, timeout_s=PATIENCE_S)
    inside(home, branch, "rm -r /tmp/k")
    home.must("restore", f"{branch}-cp", "-b", branch, "--only", "files", timeout_s=PATIENCE_S)
    assert inside(home, branch, depth) == "1101\n"
    home.must("undo", timeout_s=PATIENCE_S)
    assert inside(home, branch, depth) == ""
    home.must("stop", "--files", branch)
    home.must("shell", branch, "-d", "--user", "root")
    assert inside(home, branch, "[ -e /run/waypoint/k ] || echo gone") == "gone\n"


@pytest.mark.soak(part="load")
def test_too_long_paths_in_shared_memory_are_an_error_with_a_next_step(home: Home, branch: str) -> None:
    make = "import os\nfor i in range(20): os.mkdir('k' * 250); os.chdir('k' * 250)"
    inside(home, branch, f'cd /dev/shm; python3 -c "{make}"; cd /')
    failed = home.cli("checkpoint", f"{branch}-deep", "-b", branch)
    assert failed.code == 125
    assert "File name too long" in failed.stderr
    assert (
        "\n  next: free some disk space, or remove from /dev/shm the files that cannot be copied, and try again"
        in failed.stderr
    )
    inside(home, branch, "rm -r /dev/shm/k*")
    home.must("checkpoint", f"{branch}-deep", "-b", branch)
