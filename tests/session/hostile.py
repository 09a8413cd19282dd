"""What a session's root does to lead the daemon out of the session: programs for python3 inside. All are harmless: what
they open of the host's they only open, or write back as it is.
"""

# A mount point that is a mount point in no mount of the caller's namespace can be renamed. So: among mounts of its own
# the process leaves its root behind, which is then mounted nowhere, and still is in it. `mount_points` is a folder that
# has the session's mount points by their names.
BEHIND_THE_MOUNTS = """
import ctypes, os, shutil
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
user, group = os.getuid(), os.getgid()
call(libc.unshare(0x10020000))
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
call(libc.mount(None, b"/", None, 1 << 18 | 1 << 14, None))
os.makedirs("/tmp/elsewhere", exist_ok=True)
call(libc.mount(b"none", b"/tmp/elsewhere", b"tmpfs", 0, None))
os.mkdir("/tmp/elsewhere/old")
root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
call(libc.syscall({"x86_64": 155, "aarch64": 41}[os.uname().machine], b"/tmp/elsewhere", b"/tmp/elsewhere/old"))
call(libc.umount2(b"/old", 2))
os.fchdir(root)
"""


def replaced(*mount_points: str, by: str) -> str:
    """Renames the mount points, given without the first `/`, and makes others by `by`, Python in which `place` is the
    name of the mount point.
    """
    steps = "".join(f"place = {place!r}\nos.rename(place, place + '-was')\n{by}\n" for place in mount_points)
    return BEHIND_THE_MOUNTS + steps


def as_command(program: str) -> str:
    return f"python3 - <<'END'\n{program}\nEND"
