"""Python programs with which a session's root tries to lead the daemon to files outside of the session. All are
harmless: they only open files of the host, or write them back unchanged.
"""

# The kernel lets a process rename a mount point only if nothing is mounted there in the process's own mount namespace.
# So the program makes a mount namespace, unmounts the old root in it, and keeps the old root as its current folder.
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
    """Return a program that renames the mount points (paths without the first `/`) and puts something else in their
    place. `by`: Python code that does this for the path `place`.
    """
    steps = "".join(f"place = {place!r}\nos.rename(place, place + '-was')\n{by}\n" for place in mount_points)
    return BEHIND_THE_MOUNTS + steps


def as_command(program: str) -> str:
    return f"python3 - <<'END'\n{program}\nEND"
