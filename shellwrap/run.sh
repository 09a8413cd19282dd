#!/bin/sh
# The parent of a process that `waypoint run` starts: writes its exit status to the file $1, since the daemon cannot wait for that one.
trap : HUP INT QUIT TERM
file=$1
shift
(exec "$@" 3>&-) # exec: no builtins. 3: the master of the terminal, only for sh
status=$?
# On a full disk, a symbolic link can be made when a file cannot be made.
{ echo "$status" >"$file.new" && mv -f "$file.new" "$file"; } 2>/dev/null || ln -sf "$status" "$file"
exit "$status"
