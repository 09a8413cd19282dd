"""Programs for sessions that use as much of a resource as they get. Most print the amount and the last errno."""

# Forks up to argv[1] processes. Prints how many it could fork, and the errno of the refused fork.
FORKS = """
import os, sys, signal
count, failed = 0, 0
pids = []
try:
    while count < int(sys.argv[1]):
        pid = os.fork()
        if not pid:
            signal.pause()
        pids.append(pid)
        count += 1
except OSError as error:
    failed = error.errno
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
print(count, failed)
"""
WRITES = """
import sys
count, failed = 0, 0
try:
    with open(sys.argv[2], "wb", buffering=0) as file:
        while count < int(sys.argv[1]):
            count += file.write(bytes(1 << 20)) >> 20
except OSError as error:
    failed = error.errno
print(count, failed)
"""
TERMINALS = """
import os, sys
count, failed = 0, 0
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
try:
    while count < int(sys.argv[1]):
        os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        count += 1
except OSError as error:
    failed = error.errno
print(count, failed)
"""
FILES = """
import os, sys
count, failed = 0, 0
try:
    while count < int(sys.argv[1]):
        os.close(os.open(f"/dev/shm/{count}", os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as error:
    failed = error.errno
for number in range(count):
    os.unlink(f"/dev/shm/{number}")
print(count, failed)
"""
SPINS = """
import time
begun, used = time.monotonic(), time.process_time()
while time.monotonic() < begun + 2:
    pass
print(time.process_time() - used)
"""

# For a session whose root is the host's root. In its own namespaces, the program nests as many cgroups with long names
# as it may, so that no path reaches the deepest ones, and freezes one. It prints the depth and the last errno.
NESTING = """
import os, subprocess, signal
os.makedirs("/tmp/cg", exist_ok=True)
subprocess.run(["mount", "-t", "cgroup2", "none", "/tmp/cg"], check=True)
os.chdir("/tmp/cg")
depth, failed = 0, 0
try:
    while depth < 60:
        os.mkdir("n" * 200)
        os.chdir("n" * 200)
        depth += 1
except OSError as error:
    failed = error.errno
def held(frozen):
    pid = os.fork()
    if not pid:
        open("cgroup.procs", "w").write("0")
        signal.pause()
    while str(pid) not in open("cgroup.procs").read().split():
        pass
    if frozen:
        open("cgroup.freeze", "w").write("1")
held(frozen=False)
os.chdir("..")
held(frozen=True)
print(depth, failed)
"""
