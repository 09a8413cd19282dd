"""Programs that CRIU refuses to dump, for test_causes.py: the error, and shell text that follows its advice."""

from dataclasses import dataclass

LET_GO = "kill -USR1 %1; until [ -e /srv/off ]; do sleep 0.02; done"
END = "kill -KILL %1; wait %1 2>/dev/null; true"
STARTED = "until [ -e /srv/on ]; do sleep 0.02; done"


def hold(kind: str) -> str:
    return f"python3 /srv/held.py {kind} & {STARTED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A program that cannot be dumped. `start`: shell text that starts it as job 1 and waits until it is ready.
    `said`: words of the reason in the error. `advice`: the next step in the error. `follow`: shell texts that follow
    the advice, one for each choice. `code`: the exit code of the refused command. `seccomp`: whether the session has a
    seccomp filter. `needs`: words of the marker `requires`.
    """

    name: str
    start: str
    said: str
    advice: str
    follow: tuple[str, ...]
    code: int = 5
    seccomp: bool = True
    needs: tuple[str, ...] = ()


REFUSED = (
    Refused(
        name="a traced program",
        start=f"strace -o /dev/null sh -c ': >/srv/on; exec sleep 1000' & {STARTED}",
        said="is traced by strace",
        advice="end the tracer (strace, gdb) and try again",
        follow=(END,),
        needs=("strace",),
    ),
    Refused(
        name="a vfork",
        start='mkfifo /srv/fifo; python3 -c \'import os; os.posix_spawn("/bin/true", ["true"], {}, file_actions=['
        '(os.POSIX_SPAWN_OPEN, 9, "/srv/fifo", os.O_RDONLY, 0)])\' & '
        "until grep -q '^State:.D' /proc/$!/status; do :; done",
        said="(vfork)",
        advice="try again later, end that process, or capture without memory: --tier respawn",
        code=125,
        follow=("kill -KILL $(pgrep -P $(jobs -p %1)); wait %1", ": >/srv/fifo; wait %1"),
    ),
    Refused(
        name="a terminal without a foreground",
        start=hold("terminal"),
        said="has no process",
        advice="press Enter in that terminal, or close it, and try again",
        follow=(LET_GO, END),
    ),
    Refused(
        name="a namespace",
        start=f"unshare -Ur sh -c ': >/srv/on; exec sleep 1000' & {STARTED}",
        said="is in a user namespace of its own",
        advice="end the process, or start it without its sandbox",
        follow=(END, f"{END}; sleep 1000 &"),
        needs=("userns",),
    ),
    Refused(
        name="an io_uring",
        start=hold("io_uring"),
        said="io_uring",
        advice="start the program without io_uring (node: UV_USE_IO_URING=0)",
        follow=(f"{END}; rm /srv/on; {hold('nothing')}",),
        seccomp=False,
        needs=("io_uring",),
    ),
    Refused(
        name="/dev/tty",
        start=hold("dev_tty"),
        said="keeps /dev/tty open",
        advice="end the process (usually an interactive dash, or a program that asks for a password); use bash or zsh",
        follow=(END,),
    ),
    Refused(
        name="a kind of file",
        start=hold("ruleset"),
        said="of a kind that CRIU cannot dump",
        advice="close the file, or end the process",
        follow=(LET_GO, END),
    ),
    Refused(
        name="a file of the host",
        start=hold("sent_file"),
        said="outside the session",
        advice="start the process again from within the session; close a message queue (mq_close)",
        follow=(f"{END}; sleep 1000 &",),
    ),
)
