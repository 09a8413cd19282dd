#!/bin/sh
# Pid 1 of a session: holds the master of its terminal as 3, runs its program "$@", and leaves that one's exit status where the next
# daemon finds it, whatever happens to this one. As every shell that waits, it reaps whoever becomes its child. When it ends all ends.
trap : HUP INT QUIT TERM
dir=${WAYPOINT_RUN:-/run/waypoint}
exec 4>&2 2>/dev/null # this sh's own word about a killed shell ("Killed") does not belong on the terminal
(exec "$@" 2>&4 3>&- 4>&-) # nobody but pid 1 may have the master: the terminal could not end
status=$?
# On a full disk a link still finds room where a file's content does not.
{ echo "$status" >"$dir/exit.new" && mv -f "$dir/exit.new" "$dir/exit"; } 3>&- || ln -sf "$status" "$dir/exit"
exit "$status"
