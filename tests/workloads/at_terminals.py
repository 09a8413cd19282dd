"""Interactive programs: shells, interpreters, editors, pagers, questions."""

from tests.workloads.workload import PYTHON, Workload, of_profile

_SHELL = 'words="$words WORD"; echo $words >/opt/workload/told\r'
"""Shell text that is typed into Bourne shells to pass WORD."""
_NESTED = ("a shell within the shell: after a restore it has no",)
_HISTORY = "git init -q; git -c user.name=a -c user.email=a@a commit -q --allow-empty -m first"
_LINES = "seq 1000 >lines"


def holding_tty(program: str, typed: str, shows: str, *, start: str = "", debian: tuple[str, ...] = ()) -> Workload:
    """Return a row for a program that opens /dev/tty, which CRIU cannot restore: Enter starts the program again."""
    return Workload(
        name=typed.partition(" '")[0],
        start=start,
        typed=typed,
        shows=shows,
        debian=debian,
        tier="respawn",
        because="it keeps /dev/tty open",
        degraded=("keeps /dev/tty open",),
        again=(f"offered {program}",),
    )


SHELLS = (
    Workload(
        name="zsh nested",
        typed="zsh -f",
        ready="pgrep -x zsh",
        keys=_SHELL,
        degraded=_NESTED,
        needs=("zsh",),
        slow=True,
    ),
    Workload(
        name="fish nested",
        typed="fish --no-config",
        ready="pgrep -x fish",
        keys="set -a words WORD; echo $words >told\r",
        degraded=_NESTED,
        debian=("fish",),
    ),
    holding_tty("expect", "expect -c 'spawn -noecho bash --norc; interact'", "bash-5", debian=("expect",)),
    Workload(name="bash nested", typed="bash --norc", shows="bash-5", keys=_SHELL, degraded=_NESTED),
    of_profile("bash with jobs", "shell", needs=()),
    holding_tty("dash", "dash -i", "[\r\n][^\r\n]*# $"),
    of_profile("dash without job control", "dash", needs=()),
    Workload(name="su -", typed="su -", ready="pgrep -x su", keys=_SHELL, degraded=_NESTED),
    Workload(
        name="su - to a user",
        start="useradd -m -s /bin/bash ann; >told; chmod 666 told",
        typed="su - ann",
        shows="ann@",
        keys=_SHELL,
        degraded=_NESTED,
        slow=True,
    ),
    of_profile("tmux", "tmux", needs=("tmux",)),
    Workload(
        name="tmux in the background",
        start="tmux -f /dev/null new-session -d bash",
        tell="tmux send-keys -l ' words=\"$words '$1'\"; echo $words >told' \\; send-keys Enter",
        needs=("tmux",),
        slow=True,
    ),
    Workload(
        name="screen",
        typed="screen -c /dev/null",
        ready="pgrep -P $(pgrep -x screen | tail -n1)",
        keys=" " + _SHELL,
        debian=("screen",),
    ),
    holding_tty("mc", "mc", "Quit", debian=("mc",)),
)

INTERPRETERS = (
    of_profile("python", "python", needs=()),
    Workload(
        name="irb",
        typed="irb --nomultiline --nosingleline",
        ready="pgrep -x irb",
        keys="$w = [*$w, 'WORD']; File.write('told', $w.join(' '))\r",
        debian=("ruby", "irb"),
    ),
    Workload(
        name="ipython",
        typed=f"{PYTHON}/ipython --no-banner",
        shows=r"In \[1\]",
        keys="words = [*globals().get('words', []), 'WORD']; print(*words, file=open('told', 'w'))\r",
        pypi=("ipython",),
    ),
    Workload(
        name="numpy",
        start="echo 'import numpy; words = numpy.array([], dtype=str); a = numpy.random.rand(1000, 1000)' >begin.py",
        typed=f"{PYTHON}/python -qi begin.py",
        shows=">>> ",
        keys="words = numpy.append(words, 'WORD'); numpy.linalg.norm(a); print(*words, file=open('told', 'w'))\r",
        pypi=("numpy",),
    ),
    of_profile("node", "node", needs=("node",)),
    holding_tty("perl", "perl -de 0", "DB<1>", debian=("perl",)),
    of_profile("perl -d with its own terminal", "perl"),
    Workload(
        name="lua",
        typed="lua5.4",
        shows="> ",
        keys="w = (w or '') .. ' WORD'; f = io.open('told', 'w'); f:write(w); f:close()\r",
        debian=("lua5.4",),
    ),
    Workload(
        name="php -a",
        typed="php -a",
        shows="php > ",
        keys="$w[] = 'WORD'; file_put_contents('told', join(' ', $w));\r",
        debian=("php-cli",),
    ),
    Workload(
        name="tclsh",
        typed="tclsh",
        shows="% ",
        keys="lappend w WORD; set f [open told w]; puts $f $w; close $f\r",
        debian=("tcl",),
    ),
    Workload(
        name="jshell",
        start="echo 'String w = \"\";' >startup",
        typed="jshell --startup startup",
        shows=r"[\r\n]jshell> ",
        keys='w = w + " WORD"; java.nio.file.Files.writeString(java.nio.file.Path.of("told"), w)\r',
        debian=("openjdk-17-jdk-headless",),
    ),
    Workload(
        name="sqlite3 with an open transaction",
        start="sqlite3 data 'pragma journal_mode=wal; create table w (v)'",
        typed="sqlite3 data",
        shows="sqlite> ",
        keys="begin;\rinsert into w values('WORD');\r.once told\rselect group_concat(v, ' ') from w;\r",
        debian=("sqlite3",),
    ),
)

EDITORS = (
    Workload(
        name="vi",
        typed="vi -u NONE -i NONE notes",
        shows=r"notes",
        keys="\x1bA WORD\x1b:w! told\r",
        needs=("vi",),
        slow=True,
    ),
    Workload(name="vim", typed="vim notes", shows="notes", keys="\x1bA WORD\x1b:w! told\r", debian=("vim",)),
    Workload(name="nano", typed="nano notes", shows="GNU nano", keys="WORD ", told="", debian=("nano",)),
    holding_tty("emacs", "emacs -nw -Q notes", "Fundamental", debian=("emacs-nox",)),
    Workload(name="ed", typed="ed", ready="pgrep -x ed", keys="a\rWORD\r.\rw told\r", debian=("ed",)),
    Workload(name="less", start=_LINES, typed="less lines", shows="^lines", keys="-PsWORD\r", told="", needs=("less",)),
    Workload(
        name="man", typed="man -P less bash", shows="Manual page", keys="-PmWORD\r", told="", slow=True, needs=("man",)
    ),
    Workload(name="top", typed="top -d 0.1 | tee ticks", ready="[ -s ticks ]", work="wc -c <ticks", slow=True),
    Workload(name="htop", typed="htop", shows="F10", keys="\\WORD", told="", debian=("htop",)),
    Workload(name="watch", typed="watch -n 0.1 'date >>ticks'", ready="[ -s ticks ]", work="wc -l <ticks", slow=True),
    holding_tty("tig", "tig", r"\[main\]", start=_HISTORY, debian=("tig",)),
)

QUESTIONS = (
    Workload(
        name="password prompt (read -s)",
        typed="while read -rsp 'password: ' word; do words=\"$words $word\"; echo $words >told; done",
        shows=r"[\r\n]password: ",
        keys="WORD\r",
    ),
    Workload(
        name="sudo asking for a password",
        start="useradd -m -G sudo bob; echo bob:secret | chpasswd",
        typed="setpriv --reuid bob --regid bob --init-groups sudo -p 'password: ' sh -c 'cat >told'",
        shows=r"[\r\n]password: ",
        tier="respawn",
        because="it keeps /dev/tty open, and has other rights than the shell",
        degraded=("keeps /dev/tty open", "cannot be started again: sudo"),
        again=("lost sudo",),
        debian=("sudo",),
    ),
    Workload(name="cat", typed="cat >told", ready="pgrep -x cat", keys="WORD\r", slow=True),
)

ROWS = (*SHELLS, *INTERPRETERS, *EDITORS, *QUESTIONS)
