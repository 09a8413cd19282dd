#!/bin/sh
# `waypoint` in a session: asks the daemon by files and FIFOs in /run/waypoint (docs/protocol.md, section 3). Nothing that leads out of the
# session is open while this script waits: it is captured with the session, and then each copy of the session gets its own answer.
d=${WAYPOINT_RUN:-/run/waypoint}
case " $* " in # where the text of an error goes: with --json it is a JSON value, as every answer
*' --json '*) errors=1 ;;
*) errors=2 ;;
esac
fail() { # $1: the system's words
  if [ $errors = 1 ]; then # in ASCII, without what would have to be escaped in JSON
    printf '{"error":{"code":"failure","exit":125,"tried":"ask","on":"the daemon","said":"%s","next":"%s"}}\n' \
      "$(printf %s "$1" | LC_ALL=C tr -cd ' !#-[]-~')" "$next"
  fi
  printf 'waypoint: cannot ask the daemon: %s\n  next: %s\n' "$1" "$next" >&2
  exit 125
}
next='be the user whose session it is; on a full disk make room'
umask 077
if [ -d "$d" ] && [ ! -x "$d" ]; then
  fail "$d: Permission denied"
fi
if [ ! -p "$d/bell" ]; then # else nobody would hear, and this would wait for ever
  next='ask outside of the session; its shell and files are as they were'
  fail "$d/bell is missing: Waypoint's files were removed from this session"
fi
n=0
until mkfifo "$d/a.$$.$n" 2>/dev/null; do
  n=$((n + 1))
  if [ $n -gt 99 ]; then
    fail "$(mkfifo "$d/a.$$.$n" 2>&1)"
  fi
done
i=$$.$n
trap 'rm -f "$d/a.$i" "$d/r.$i" "$d/t.$i"' EXIT
trap 'exit 130' HUP INT TERM
said=$({ if [ $# -gt 0 ]; then printf '%s\0' "$@"; fi >"$d/t.$i" && mv "$d/t.$i" "$d/r.$i"; } 2>&1) || fail "$said"
echo 1<>"$d/bell" # wakes the daemon; a daemon that starts later looks there by itself
rc=
next='ask again; what it should have changed tells whether it was done'
# Of the open that a signal breaks off, as the one that ends the session, this sh would say something. And it would keep on a descriptor of its own
# what a group has in place of the terminal meanwhile, and so be taken for an interactive shell within the shell.
exec 3>&2 2>/dev/null </dev/null
[ $errors = 1 ] || errors=3
until [ -n "$rc" ]; do # empty: the daemon died meanwhile
  if [ ! -p "$d/a.$i" ]; then
    exec 2>&3
    fail "$d/a.$i is missing: the answer is lost"
  fi
  { IFS= read -r rc && if [ "$rc" = 0 ]; then cat; else cat >&"$errors"; fi; } <"$d/a.$i"
done
exit "$rc"
