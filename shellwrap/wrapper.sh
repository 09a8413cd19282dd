#!/bin/sh
# An ancestor of the session's shell: runs it and leaves its exit status where the next daemon finds it, whatever happens to this one.
# It must outlive what the terminal sends to everyone on it; a trap with a command (not '') so that the shell gets the defaults back.
trap : HUP INT QUIT TERM
exec 3>&- # pid 1 keeps the terminal's master open as 3. Nothing else may: the terminal could not end
dir=${WAYPOINT_RUN:-/run/waypoint}
exec 4>&2 2>/dev/null # this sh's own word about a killed shell ("Killed") does not belong on the terminal
(exec "$@" 2>&4 4>&-)
status=$?
# On a full disk a link still finds room where a file's content does not.
{ echo "$status" >"$dir/exit.new" && mv -f "$dir/exit.new" "$dir/exit"; } || ln -sf "$status" "$dir/exit"
exit "$status"
