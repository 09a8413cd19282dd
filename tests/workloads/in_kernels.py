"""Python programs with state in the kernel: queues, timers, shared memory, threads, deleted files."""

from tests.workloads.workload import Workload

# The beginning of each program: `read_words` waits for words on a FIFO, `note` writes all known words.
_BASICS = """
import ctypes, multiprocessing, os, select, signal, socket, struct, threading, time
from multiprocessing import shared_memory

def read_words():
    with open("tell") as fifo:
        return fifo.read().split()

def note(words):
    with open("told.new", "w") as file:
        file.write(" ".join(words))
    os.rename("told.new", "told")

words = []
"""


def python(name: str, text: str, *, tell: str = "echo $1 >tell", **facts: object) -> Workload:
    """Return a row for a program that reads words from the FIFO `tell`, and makes the file `up` when it works."""
    start = f"mkfifo tell\ncat >program.py <<'end'\n{_BASICS}{text}\nend\npython3 program.py >log 2>&1 &"
    ready = "[ -e up ] || { cat log; false; }"
    return Workload(name=name, start=start, ready=ready, tell=tell, **facts)  # type: ignore[arg-type]


_UP = 'open("up", "w").close()'
_LISTEN = f"""{_UP}
while True:
    words += read_words()
    note(words)
"""

_QUEUED = " ".join(f"queued{number:02}" for number in range(20))

ROWS = (
    python(
        "deleted file of 300 MB",
        f"""
file = open("large", "w+b")
os.unlink("large")
for _ in range(300):
    file.write(os.urandom(1 << 20))
file.flush()
{_UP}
while True:
    for word in read_words():
        file.write(word.encode() + b" ")
    file.flush()
    file.seek(300 << 20)
    note(file.read().decode().split())
""",
        slow=True,
    ),
    python(
        "shared memory of processes",
        f"""
shared = shared_memory.SharedMemory(create=True, size=4096)
def child():
    while True:
        note(bytes(shared.buf).rstrip(b"\\0").decode().split())
        time.sleep(0.05)
multiprocessing.get_context("fork").Process(target=child, daemon=True).start()
{_UP}
while True:
    words += read_words()
    data = " ".join(words).encode()
    shared.buf[:len(data)] = data
""",
    ),
    python(
        "500 threads",
        f"""
changed, seen = threading.Condition(), 0
def wait():
    global seen
    known = 0
    while True:
        with changed:
            changed.wait_for(lambda: len(words) > known)
            known += 1
            seen += 1
            if seen == 500 * len(words):
                note(words)
threading.stack_size(1 << 16)
for _ in range(500):
    threading.Thread(target=wait, daemon=True).start()
{_UP}
while True:
    more = read_words()
    with changed:
        words += more
        changed.notify_all()
""",
    ),
    python(
        "UDP server with queued datagrams",
        f"""
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 7031))
client = socket.socket(type=socket.SOCK_DGRAM)
for number in range(20):
    client.sendto(f"queued{{number:02}}".encode(), ("127.0.0.1", 7031))
{_UP}
while True:
    for word in read_words():
        client.sendto(word.encode(), ("127.0.0.1", 7031))
    while select.select([server], [], [], 0.1)[0]:
        words.append(server.recv(99).decode())
    note(words)
""",
        early=False,
        knows=_QUEUED,
        gone=_QUEUED,
        degraded=("udp 7031: datagrams that no program has read yet are not in copies",),
    ),
    python(
        "TCP connection with unread data",
        f"""
server = socket.create_server(("127.0.0.1", 7032))
client = socket.create_connection(("127.0.0.1", 7032))
peer = server.accept()[0]
client.send(b"unread " * 10000)
{_UP}
got = b""
while True:
    for word in read_words():
        client.send(word.encode() + b" ")
    while select.select([peer], [], [], 0.1)[0]:
        got += peer.recv(1 << 16)
    note(sorted(set(got.decode().split())))
""",
        early=False,
        knows="unread",
    ),
    python(
        "Unix sockets with descriptors on their way",
        f"""
left, right = socket.socketpair()
file = open("file", "w+")
socket.send_fds(left, [b"file"], [file.fileno()])
file.close()
{_UP}
more = read_words()
_, fds, _, _ = socket.recv_fds(right, 99, 1)
file = os.fdopen(fds[0], "w+")
while True:
    file.write(" ".join(more) + " ")
    file.flush()
    file.seek(0)
    note(file.read().split())
    more = read_words()
""",
        early=False,
    ),
    python(
        "Unix sockets renamed and linked after bind",
        f"""
listeners = []
for folder, is_linked in (("", True), ("/opt/workload/", True), ("/opt/workload/", False)):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{{folder}}new")
    listener.listen()
    os.link("new", f"socket{{len(listeners)}}") if is_linked else os.rename("new", f"socket{{len(listeners)}}")
    if is_linked:
        os.unlink("new")
    listeners.append(listener)
{_UP}
while True:
    heard = [listener.accept()[0].recv(99).decode() for listener in listeners]
    assert len(set(heard)) == 1
    words.append(heard[0])
    note(words)
""",
        tell="""python3 -c '
import socket, sys
for number in range(3):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(f"socket{number}")
    peer.send(sys.argv[1].encode())
' $1""",
    ),
    python(
        "periodic timerfd, ticks unread",
        f"""
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
libc.timerfd_settime(timer, 0, struct.pack("4q", 0, 10_000_000, 0, 10_000_000), None)
ticks = 0
{_UP}
while True:
    time.sleep(0.1)
    ticks += int.from_bytes(os.read(timer, 8), "little")
    note([str(ticks)])
""",
        tell="",
        work="cat told 2>/dev/null || echo 0",
    ),
    python(
        "interval timer and signals",
        f"""
def count(*_):
    words.append("x")
    note([str(len(words))])
signal.signal(signal.SIGALRM, count)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
{_UP}
while True:
    signal.pause()
""",
        tell="",
        work="cat told 2>/dev/null || echo 0",
        slow=True,
    ),
    python(
        "epoll server with 50 connections",
        f"""
server = socket.create_server(("127.0.0.1", 7033))
poll = select.epoll()
pairs = {{}}
for _ in range(50):
    client = socket.create_connection(("127.0.0.1", 7033))
    peer = server.accept()[0]
    poll.register(peer, select.EPOLLIN | select.EPOLLET)
    pairs[peer.fileno()] = (peer, client)
{_UP}
while True:
    for word in read_words():
        for _, client in pairs.values():
            client.send(word.encode())
        heard = 0
        while heard < 50:
            for fd, _ in poll.poll():
                heard += pairs[fd][0].recv(99).decode() == word
        words.append(word)
    note(words)
""",
        slow=True,
    ),
    python(
        "busy loop",
        f"""
{_UP}
count = 0
while True:
    count += 1
    if count % 200_000 == 0:
        note([str(count)])
""",
        tell="",
        work="cat told 2>/dev/null || echo 0",
        slow=True,
    ),
    python(
        "pool of processes",
        f"""
def double(word):
    return word * 2
pool = multiprocessing.get_context("fork").Pool(4)
{_UP}
while True:
    words += pool.map(double, read_words())
    note([word[: len(word) // 2] for word in words])
""",
        slow=True,
    ),
    python(
        "memory of 200 MB",
        f"""
memory = [os.urandom(1 << 20) for _ in range(200)]
sums = [sum(part[:100]) for part in memory]
{_LISTEN.replace("note(words)", "assert sums == [sum(part[:100]) for part in memory]; note(words)")}
""",
        slow=True,
    ),
    python(
        "eventfd, pidfd, memfd",
        f"""
libc = ctypes.CDLL(None)
event = os.eventfd(7)
memory = os.memfd_create("words")
{_UP}
while True:
    os.write(memory, (" ".join(read_words()) + " ").encode())
    os.eventfd_write(event, 1)
    if os.eventfd_read(event):
        note(os.pread(memory, 9999, 0).decode().split())
""",
        slow=True,
    ),
    python(
        "POSIX timers and a blocked signal that waits",
        f"""
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
{_UP}
words += read_words()
words.append(signal.sigwaitinfo([signal.SIGUSR1]).si_signo == signal.SIGUSR1 and "waiting")
{_LISTEN.replace(_UP, "note(words)")}
""",
        early=False,
        knows="waiting",
    ),
    Workload(
        name="signals and traps",
        start="""
        (
            trap 'words="$words $(cat word)"; echo $words >told' USR1; echo $BASHPID >pid
            while :; do sleep 1000 & wait $!; kill $!; done
        ) 2>/dev/null &
        """,
        ready="[ -s pid ]",
        tell="echo $1 >word; kill -USR1 $(cat pid)",
    ),
)
