#!/bin/sh
# `waypoint` in a session: asks the daemon by files and FIFOs in /run/waypoint (docs/protocol.md, section 3). Nothing that leads out of the
# session is open while this script waits: it is captured with the session, and then each copy of the session gets its own answer.
d=${WAYPOINT_RUN:-/run/waypoint}
case ${1-} in
checkpoint | restore | fork | log | status) ;;
*)
  echo "usage, inside a session: waypoint checkpoint NAME | restore NAME | fork NAME BRANCH... | log | status" >&2
  exit 2
  ;;
esac
umask 077
n=0
until mkfifo "$d/a.$$.$n" 2>/dev/null; do
  n=$((n + 1))
  if [ $n -gt 99 ]; then
    echo "waypoint: cannot ask the daemon: $(mkfifo "$d/a.$$.$n" 2>&1)" >&2
    exit 125
  fi
done
i=$$.$n
trap 'rm -f "$d/a.$i" "$d/r.$i" "$d/t.$i"' EXIT
trap 'exit 130' HUP INT TERM
{ printf '%s\n' "$@" >"$d/t.$i" && mv "$d/t.$i" "$d/r.$i"; } || exit 125
echo 1<>"$d/bell" # wakes the daemon; a daemon that starts later looks there by itself
rc=
until [ -n "$rc" ]; do # empty: the daemon died meanwhile
  { IFS= read -r rc && if [ "$rc" = 0 ]; then cat; else cat >&2; fi; } <"$d/a.$i"
done
exit "$rc"
