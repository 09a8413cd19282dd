#!/bin/sh
# The parent of a process that `waypoint run` starts: writes its exit status to the file $1, since the daemon cannot wait for that one.
trap : HUP INT QUIT TERM
file=$1
shift
# Whether there is a program $1. Else this sh would tell that there is none in words about its own script.
is_there() {
  case $1 in */*) [ -e "$1" ]; return ;; esac
  IFS=:
  for folder in $PATH; do [ ! -e "${folder:-.}/$1" ] || return 0; done
  return 1
}
if (is_there "$1"); then
  (exec "$@" 3>&-) # exec: no builtins. 3: the master of the terminal, only for sh
  status=$?
else
  echo "waypoint: $1: the session has no such program" >&2
  status=127
fi
# On a full disk, a symbolic link can be made when a file cannot be made. Where there is no room for a name either (a quota), the status goes
# into memory.
{ echo "$status" >"$file.new" && mv -f "$file.new" "$file"; } 2>/dev/null || ln -sf "$status" "$file" 2>/dev/null ||
  (set -C && echo "$status" >"/dev/shm/.waypoint-${file##*/}")
exit "$status"
