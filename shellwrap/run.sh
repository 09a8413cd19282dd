#!/bin/sh
# The parent of a process that `run` puts beside the shell: leaves its exit status in the file $1, since the daemon is nobody's parent.
trap : HUP INT QUIT TERM
exec 3>&- # with a terminal: the init above keeps its master open as 3
file=$1
shift
"$@"
status=$?
echo "$status" >"$file.new" && mv -f "$file.new" "$file"
exit "$status"
