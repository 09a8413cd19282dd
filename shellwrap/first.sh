#!/bin/sh
# Pid 1 of a session: holds the master of its terminal as descriptor 3, runs the program "$@" in the folder in which this sh was started, and
# writes the exit status of the program to a file, where the daemon finds it. Like each waiting shell, it reaps orphans. When pid 1 ends, the
# kernel kills all the rest. It stands in /, so that it keeps no folder that the user may remove.
# The daemon kills a shell that no longer serves commands. Before, it writes the file `renew`: then "$@" is started again, with the content of
# that file as WAYPOINT_STATE.
trap : HUP INT QUIT TERM
dir=${WAYPOINT_RUN:-/run/waypoint}
exec 4>&2 2>/dev/null # the message of this sh about a killed shell ("Killed") must not reach the terminal
cd /
while :; do
  (cd "$OLDPWD"; unset OLDPWD; exec "$@" 2>&4 3>&- 4>&-) # only pid 1 may have the master, else the terminal will never end
  status=$?
  [ "$status" = 137 ] && IFS= read -r WAYPOINT_STATE <"$dir/renew" || break
  rm -f "$dir/renew" 3>&-
  export WAYPOINT_STATE
done
# On a full disk, a symbolic link can be made when a file cannot be made.
{ echo "$status" >"$dir/exit.new" && mv -f "$dir/exit.new" "$dir/exit"; } 3>&- || ln -sf "$status" "$dir/exit"
exit "$status"
