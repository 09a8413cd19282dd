#!/bin/sh
# Pid 1 of a session: holds the master of its terminal as descriptor 3, runs the program "$@" in the folder in which this sh was started, and
# writes the exit status of the program to a file, where the daemon finds it. Like each waiting shell, it reaps orphans. When pid 1 ends, the
# kernel kills all the rest: what that is, is noted before. It stands in /, so that it keeps no folder that the user may remove.
trap : HUP INT QUIT TERM
dir=${WAYPOINT_RUN:-/run/waypoint}
exec 4>&2 2>/dev/null # the message of this sh about a killed shell ("Killed") must not reach the terminal
cd /
(cd "$OLDPWD"; unset OLDPWD; exec "$@" 2>&4 3>&- 4>&-) # only pid 1 may have the master, else the terminal will never end
status=$?
most=256
for one in /proc/[0-9]*/stat; do
  [ $((most -= 1)) -ge 0 ] || break
  read -r line <"$one" && printf '%s\n' "$line"
done >"$dir/left"
# On a full disk, a symbolic link can be made when a file cannot be made.
{ echo "$status" >"$dir/exit.new" && mv -f "$dir/exit.new" "$dir/exit"; } 3>&- || ln -sf "$status" "$dir/exit"
exit "$status"
