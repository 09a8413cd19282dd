# How bash writes its state: at each prompt, and when the daemon asks for it. hooks.bash, which reads this file, has the variables.

# Write the shell's state at this prompt to stdout, which is the file $__wp_l: what a capture has of a shell that is busy, or that has ended. Two
# files take turns, so that one is whole while the other is being written. They are overwritten, never truncated: file systems write a truncated
# file to disk at once. Where writing takes long (much state), nothing is written for 20 times as long, and the files are emptied meanwhile.
# __wp_lost is `lost` if nothing was written.
__wp_keep() {
  builtin local - "__wp_t0=${EPOCHREALTIME-}" __wp_t1
  builtin set +euxv
  __wp_lost=lost
  __wp_t0=${__wp_t0//[!0-9]/}
  if [[ -n ${__wp_l-} && -f /dev/fd/1 && ${__wp_t0:-0} -ge ${__wp_rest:-0} ]] && __wp_may_write; then
    __wp_seq=$((__wp_seq + 1))
    __wp_remember
    if builtin printf '\0' && __wp_state "$__wp_seq" "$@" && builtin printf 'e\0%s\0\0\0' "$__wp_seq"; then
      __wp_lost=
    else
      __wp_rest=$((${__wp_t0:-0} + 20000000))
      __wp_empty
    fi
    __wp_t1=${EPOCHREALTIME-} __wp_t1=${__wp_t1//[!0-9]/}
    [[ $((${__wp_t1:-0} - ${__wp_t0:-0})) -le __wp_most ]] || __wp_rest=$((__wp_t1 + 20 * (__wp_t1 - __wp_t0)))
  elif [[ -n ${__wp_l-} ]]; then
    __wp_empty
  fi
  __wp_next
}

# Report where that has changed, and say so where the state cannot be written any more.
__wp_tell() {
  [[ ${__wp_lost-} != "${__wp_told-}" ]] || builtin return 0
  __wp_told=${__wp_lost-}
  __wp_say "L;$__wp_s;$__wp_told"
  [[ -z $__wp_told ]] || builtin printf "waypoint: this shell's variables and functions cannot be written (full disk, ulimit -f): they may end with it\r\n" >"$__wp_tty"
}

# False where a file may not become as large as a state (ulimit -f): a signal would end the shell that writes one. __wp_may is 1 if this was
# true, until the next command or prompt.
__wp_may_write() {
  [[ -z ${__wp_may-} ]] || builtin return 0
  builtin local -a __wp_limits
  builtin mapfile -t -n 3 __wp_limits </proc/self/limits
  [[ ${__wp_limits[2]-} != 'Max file size'* || ${__wp_limits[2]} =~ ^'Max file size'\ +(unlimited|[0-9]{9,})\  ]] && __wp_may=1
}

# Let states be written into memory (docs/protocol.md), and back into the folder. Nobody else can read these files, or put other ones there.
__wp_aside() {
  __wp_w=/dev/shm/.waypoint- __wp_hn=
  ( builtin umask 077; builtin set -C; for __wp_each in last.0 last.1 names hist.0 hist.1; do [[ -f $__wp_w$__wp_each && -O $__wp_w$__wp_each && ! -L $__wp_w$__wp_each ]] || builtin : >"$__wp_w$__wp_each" || builtin exit 1; done ) && __wp_next && [[ -n $__wp_l ]]
} 2>/dev/null
__wp_back() {
  __wp_w=$__wp_d/ __wp_hn=
  __wp_next
}

__wp_empty() {
  builtin local __wp_each
  [[ -z $__wp_first ]] || builtin return 0
  for __wp_each in "$__wp_w"last.[01]; do [[ ! -f $__wp_each || -L $__wp_each ]] || builtin : >|"$__wp_each"; done
}
__wp_next() {
  __wp_l=${__wp_w}last.$(((__wp_seq + 1) % 2))
  [[ -f $__wp_l && -O $__wp_l && ! -L $__wp_l ]] || __wp_l=
}

# Write the history into a file, unless it is there already. Not one of more than 99,999 lines.
__wp_remember() {
  builtin local "__wp_was=${HISTTIMEFORMAT+x}" "__wp_format=${HISTTIMEFORMAT-}"
  [[ $HISTCMD != "${__wp_hn-}" && ${#HISTCMD} -le 5 && -o history ]] || return 0
  __wp_hn=$HISTCMD
  if [[ ${__wp_hs-} == hist.0 ]]; then __wp_hs=hist.1; else __wp_hs=hist.0; fi
  HISTTIMEFORMAT=%s # else the file would not tell where an entry of several lines ends
  __wp_plain_file "$__wp_w$__wp_hs" && builtin history -w "$__wp_w$__wp_hs" || __wp_hs=
  if [[ -n $__wp_was ]]; then HISTTIMEFORMAT=$__wp_format; else builtin unset -v HISTTIMEFORMAT; fi
  builtin return 0
}

# Write the shell's state to stdout, except the traps: a function does not see them, so the line bound to the key, or __wp_cmd, writes them.
# $1: the number of the state, empty if it was asked for. $2: the user's $SHELLOPTS, as this function changes the options. The rest: the user's
# positional parameters. The names of the functions come from a file, since that takes no process.
__wp_state() {
  builtin local - __wp_v
  builtin local -a __wp_vs __wp_ds
  __wp_ds=("${DIRSTACK[@]:1}") # DIRSTACK has `~` for the home folder
  builtin set +efnuxv
  __wp_plain_file "${__wp_w}names" && { builtin declare -F && builtin printf '.\n'; } 1<>"${__wp_w}names" || builtin return 1
  builtin mapfile -t __wp_vs <"${__wp_w}names"
  builtin printf 's\0%s\0bash\0%s\0o\0\0%s\0%s\0' "$1" "$__wp_r" "$2" "$BASHOPTS" &&
    builtin printf 'd\0\0\0%s\0' "$PWD" "${__wp_ds[@]/#\~/"$HOME"}" &&
    builtin printf 'g\0\0\0%s\0' "$0" "${@:3}" &&
    builtin printf 'h\0\0\0%s\0' "${__wp_hs-}" &&
    builtin printf 'm\0\0\0' && builtin umask && builtin printf '\0l\0\0\0' && builtin ulimit -Sa && builtin printf '\0v\0\0\0' &&
    builtin declare -p && builtin printf '\0' || builtin return 1
  for __wp_v in "${!BASH_ALIASES[@]}"; do builtin printf 'a\0%s\0\0%s\0' "$__wp_v" "${BASH_ALIASES[$__wp_v]}" || builtin return 1; done
  for __wp_v in "${__wp_vs[@]}"; do
    [[ $__wp_v != . ]] || builtin break # behind it may be anything
    [[ $__wp_v != *' __wp'* ]] || builtin continue
    builtin printf 'f\0%s\0%s\0' "${__wp_v##* }" "${__wp_v% *}" && builtin declare -f -- "${__wp_v##* }" && builtin printf '\0' || return 1
  done
}

# Finish the file of the state and report to the daemon. $1: `ok` if everything could be written.
__wp_kept() {
  __wp_then=
  [[ $1 != ok ]] || builtin printf '\0e\0\0\0\0' >>"$__wp_f" || builtin set -- failed
  __wp_say "$__wp_kept;$1"
} 2>/dev/null
