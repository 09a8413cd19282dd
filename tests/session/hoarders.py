"""Programs that take as much as they can get, for sessions. Each prints how much that was, and the errno at its end."""

# Prints how many there were when the next one was refused, and the errno; forks at most as many as are asked for.
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

# In namespaces of its own, which a session whose root is the host's uses to make groups in its own: 29 groups of long
# names below each other, so that no path reaches the last ones, one that is frozen, and as many as it may.
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
