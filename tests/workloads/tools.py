"""Builds, package managers, version control, debuggers, pipelines, captured before they end."""

from tests.workloads.workload import PYTHON, Workload, of_profile

_TICKS = "while sleep 0.05; do echo x >>/opt/workload/ticks; done"
_COUNT = "wc -l <ticks"
_GIT = "git init -q; git config user.name a; git config user.email a@a; git commit -q --allow-empty -m first"
# A package whose installation waits for words.
_PACKAGE = r"""
mkdir -p p/DEBIAN; mkfifo tell; cd p/DEBIAN
printf 'Package: w\nVersion: 1\nArchitecture: all\nMaintainer: a <a@a>\nDescription: w\n' >control
printf '#!/bin/sh\ncd /opt/workload\nwhile read word; do echo $word >>told; done <>tell\n' >postinst
chmod 755 . postinst; cd ../..; dpkg-deb -b p w.deb >/dev/null
"""

ROWS = (
    Workload(name="loop with sleep", start=f">ticks; {_TICKS} &", work=_COUNT),
    Workload(
        name="subshell that waits for its jobs",
        start=f">ticks; ({_TICKS} & sleep 1000 & wait) &",
        work=_COUNT,
        slow=True,
    ),
    Workload(
        name="pipeline over a FIFO",
        start="mkfifo tell; (while read word; do echo $word; done <>tell) | stdbuf -oL tr -d x | tee log >told &",
        ready="pgrep -x tee",
        tell="echo $1 >tell",
    ),
    Workload(
        name="coprocess",
        start='coproc (while read -r word; do words="$words $word"; echo $words >told; done); echo $COPROC_PID >pid',
        tell="echo $1 >/proc/$(cat pid)/fd/0",
        slow=True,
    ),
    Workload(
        name="compressing pipeline",
        start="yes | gzip | gzip -d | pv -q 2>/dev/null | awk 'NR % 100000 == 0 { print; fflush() }' >ticks &".replace(
            "| pv -q 2>/dev/null ", ""
        ),
        ready="[ -s ticks ]",
        work=_COUNT,
        slow=True,
    ),
    Workload(
        name="xargs -P",
        start=">ticks; yes | xargs -P 4 -n 1 sh -c 'echo x >>ticks; sleep 0.05' &",
        work=_COUNT,
        slow=True,
    ),
    Workload(
        name="dd with a delay",
        start="dd if=/dev/zero bs=1 2>/dev/null | dd bs=1 of=copy 2>/dev/null &",
        ready="[ -s copy ]",
        work="stat -c %s copy",
        slow=True,
    ),
    Workload(
        name="rsync",
        start="mkdir from; head -c 20M /dev/urandom >from/a; rsync -a --inplace --bwlimit=1000 from/ to &",
        ready="[ -s to/a ]",
        work="stat -c %s to/a",
        debian=("rsync",),
    ),
    Workload(
        name="flock, held and waited for",
        start="flock lock sleep 1000 & (flock -n lock true || echo held) >told; tail -f /dev/null | flock lock cat &",
        ready="grep -q held told",
        work="",
        tell="flock -n lock true || echo $1 >>told",
        knows="held",
        slow=True,
    ),
    Workload(
        name="make -j",
        start="""
        for i in $(seq 2000); do echo $i >$i.in; done
        printf 'all: $(patsubst %%.in,%%.out,$(wildcard *.in))\\n%%.out: %%.in\\n\\tsleep 0.05; cp $< $@\\n' >Makefile
        make -j 4 >log &
        """,
        ready='[ -e log -a -n "$(ls | grep -m1 out)" ]',
        work="ls | grep -c out",
        needs=("make",),
    ),
    Workload(
        name="gcc under make -j",
        start="""
        for i in $(seq 300); do
            printf '#include <stdio.h>\\n#include <stdlib.h>\\nint f%s() { return puts("") + rand(); }\\n' $i >f$i.c
        done
        printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n' >Makefile; make -j 2 CFLAGS=-O2 >log &
        """,
        ready="[ -n \"$(ls | grep -m1 '[.]o$')\" ]",
        work="ls | grep -c '[.]o$'",
        debian=("gcc", "libc6-dev", "make"),
    ),
    Workload(
        name="git rebase, its list in an editor",
        start=f"{_GIT}; for i in 1 2 3; do git commit -q --allow-empty -m $i; done",
        typed="GIT_SEQUENCE_EDITOR='vi -u NONE' git rebase -i --root",
        shows="pick",
        keys="\x1bggO# WORD\x1b:w! told\r",
        told="sed -n 's/^# \\([a-z0-9-]*\\)$/\\1/p' told",
        needs=("git", "vi"),
    ),
    Workload(
        name="git rebase, stopped",
        start=f"""
        {_GIT}; for i in 1 2; do echo $i >f; git add f; git commit -qm $i; done
        GIT_SEQUENCE_EDITOR='sed -i s/pick/edit/' git rebase -qi --root 2>/dev/null; :
        """,
        tell="git commit -q --allow-empty -m $1",
        told="git log --format=%s; [ ! -d .git/rebase-merge ] || echo stopped",
        knows="first stopped",
        needs=("git",),
        slow=True,
    ),
    Workload(
        name="git clone over loopback",
        start=f"""
        mkdir from; cd from; {_GIT}; head -c 60M /dev/urandom >large; git add .; git commit -qm large; cd ..
        git daemon --port=7021 --base-path=$PWD --export-all --reuseaddr &
        until ss -Htln sport = 7021 | grep -q .; do sleep 0.05; done
        (git clone -q git://127.0.0.1:7021/from to; cmp to/large from/large && echo whole >told) >log 2>&1 &
        """,
        ready="[ -d to/.git ]",
        tell="echo $1 >>words",
        told="cat told words; cat log",
        knows="whole",
        debian=("git", "iproute2"),
        early=False,
    ),
    Workload(
        name="dpkg in the middle of an installation",
        start=f"""
        {_PACKAGE}
        dpkg -i ./w.deb >log 2>&1 &
        """,
        ready="pgrep -x w.postinst",
        tell="echo $1 >tell",
        needs=("apt-get",),
        slow=True,
    ),
    Workload(
        name="apt-get in the middle of an installation",
        start=f"""
        {_PACKAGE}
        apt-get install -qy $PWD/w.deb >log 2>&1 </dev/null &
        """,
        ready="pgrep -x w.postinst",
        tell="echo $1 >tell",
        needs=("apt-get",),
        slow=True,
    ),
    Workload(
        name="pip install in progress",
        start=f"""
        mkdir p; >ticks; echo 'import os; os.system("{_TICKS}")' >p/setup.py
        {PYTHON}/pip install --no-index --no-build-isolation ./p >log 2>&1 &
        """,
        ready="[ -s ticks ]",
        work=_COUNT,
        pypi=("setuptools", "wheel"),
    ),
    Workload(
        name="npm install in progress",
        start=f"""
        >ticks; echo '{{"name": "w", "version": "1.0.0", "scripts": {{"preinstall": "{_TICKS}"}}}}' >package.json
        npm install >log 2>&1 &
        """,
        ready="[ -s ticks ]",
        work=_COUNT,
        debian=("nodejs",),
        npm=("typescript",),
    ),
    Workload(
        name="cargo build in progress",
        start=f"""
        export PATH=$PATH:/root/.cargo/bin; mkdir -p src; >ticks; echo 'fn main() {{}}' >src/main.rs
        printf '[package]\\nname = "w"\\nversion = "0.1.0"\\nbuild = "build.rs"\\n' >Cargo.toml
        echo 'fn main() {{ std::process::Command::new("sh").args(["-c", "{_TICKS}"]).status().unwrap(); }}' >build.rs
        cargo build --offline >log 2>&1 &
        """,
        ready="[ -s ticks ]",
        work=_COUNT,
        needs=("cargo",),
        slow=True,
    ),
    of_profile("java", "jvm"),
    Workload(
        name="strace",
        start="strace -o log sleep 1000 &",
        ready="grep -q nanosleep log",
        tier="respawn",
        because="CRIU cannot dump what another process traces",
        degraded=("trac",),
        again=("respawned strace",),
        needs=("strace",),
    ),
    Workload(
        name="gdb",
        start="mkfifo in; exec 7<>in",
        typed="gdb -q -ex 'break nanosleep' -ex run --args sleep 1000",
        shows=r"\(gdb\)",
        tier="respawn",
        because="CRIU cannot dump what another process traces",
        degraded=("trac",),
        again=("offered gdb",),
        debian=("gdb",),
    ),
    Workload(
        name="bubblewrap",
        start="bwrap --ro-bind / / --unshare-user --unshare-pid sleep 1000 &",
        ready="pgrep -x sleep",
        allow=("userns",),
        tier="respawn",
        because="CRIU cannot dump nested user namespaces",
        degraded=("namespace", "cannot be started again: bwrap"),
        again=("lost bwrap",),
        debian=("bubblewrap",),
    ),
)
