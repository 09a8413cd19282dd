# The hooks of bash. bash reads this file as its rc file (--rcfile). The file first sources the user's ~/.bashrc. Then it defines the
# functions by which the daemon runs a command in this shell, as if a person had typed it, with no process or descriptor of Waypoint left
# behind. docs/protocol.md, section 3, has the meanings of the files and marks.
#
# The daemon sends one key sequence, the key. Its function __wp_arm reads the request from a file. To run a command, it replaces the edited
# line by one that evaluates the command, and the daemon sends Enter. Why it is done so:
# - The key's function does not run the command itself: a command in `bind -x` has readline's terminal modes, and $? is lost.
# - The command is evaluated at top level, not in a function: there `declare` would be local, `$@` hidden, and ^C would skip the end mark.
# - The function that the key calls is one plain word: in a continued line (PS2) the parser would not recognise `{`.
# - `{ ...;} 2>/dev/null` hides the output of `set -x`; `cmd&&\builtin : __wp` keeps a status without triggering `set -e` or the ERR trap.
# - The command's text comes from a file, not from typed keys, so that quotes, `!`, newlines and a half-typed line cannot change it.
#
# Variables: __wp_d: the folder shared with the daemon. __wp_s: the session's nonce. __wp_b: the branch's name. __wp_at: where the shell is (see
# __wp_hook). __wp_cmd: our part of PROMPT_COMMAND. __wp_r: the status $? at the last prompt. __wp_l: the file for the state at the next prompt (see __wp_keep),
# __wp_w: what stands before the names of the files of states: in the folder, or in memory. __wp_first: at the first prompt of a shell in the place of another one. __wp_seq: the number of that state, __wp_most: the microseconds that writing it may take, __wp_hs, __wp_hn: the file of the history, and HISTCMD when it was written. __wp_stated: the id of the last request `state`. Of the command that is being run: __wp_op: exec, in or tty. __wp_n: its id.
# __wp_k: its nonce. __wp_c: its text. __wp_i: its stdin. __wp_x: what the line evaluates. __wp_p: see __wp_file. __wp_ps: what stands before the user's prompt. __wp_g, __wp_et: see __wp_guard. __wp_may: see __wp_may_write. __wp_line, __wp_pt: the person's half-typed line and the cursor's place in it. __wp_done: the last id.

[[ -v WAYPOINT_AGAIN || ! -r ~/.bashrc ]] || . ~/.bashrc

if \builtin shopt -q expand_aliases; then __wp_aliases=-s; else __wp_aliases=-u; fi
\builtin shopt -u expand_aliases # else the user's aliases would be expanded in the functions below

__wp_d=${WAYPOINT_RUN:-/run/waypoint} __wp_w= __wp_first= __wp_seq=0 __wp_rc=${BASH_SOURCE[0]}
[[ ! ${WAYPOINT_STATE-} =~ ^([0-9]{1,18}):(hist\.[01])?(:aside)?$ ]] || __wp_first=1 __wp_told=unknown __wp_seq=${BASH_REMATCH[1]} __wp_hs=${BASH_REMATCH[2]-} __wp_w=${BASH_REMATCH[3]-}
[[ ! ${WAYPOINT_AGAIN-} =~ ^[0-9]+:([0-9]{1,18}):(hist\.[01])?:(.*)$ ]] || { __wp_seq=${BASH_REMATCH[1]} __wp_hs=${BASH_REMATCH[2]-}; builtin eval "__wp_old=(${BASH_REMATCH[3]})"; }
builtin unset -v WAYPOINT_RUN WAYPOINT_STATE
__wp_names=(PAGER GIT_PAGER MANPAGER SYSTEMD_PAGER GIT_TERMINAL_PROMPT)
builtin declare -gA __wp_values
__wp_values=([PAGER]=cat [GIT_PAGER]=cat [MANPAGER]=cat [SYSTEMD_PAGER]=cat [GIT_TERMINAL_PROMPT]=0)

# The terminal's path. Not /dev/tty: CRIU cannot capture a process that has /dev/tty open, and a capture may come while a mark is written.
for __wp_tty in /dev/pts/[0-9]* /dev/tty; do [[ ! $__wp_tty -ef /proc/self/fd/0 ]] || builtin break; done

# Enable the builtins that the hooks use, since the user may have disabled them (`enable -n read`). A function `builtin` is removed. Switch off
# `set -t`, which ends the shell after a command.
__wp_able() {
  \command unset -f builtin
  \command enable builtin continue bind declare eval exec export history local mapfile printf read return set shopt trap ulimit umask unset
  builtin set +t
}

# `read` of a whole line, with the user's IFS where that is readonly.
__wp_read() {
  if [[ -v IFS && ${IFS@a} == *r* ]]; then builtin read "$@"; else IFS= builtin read "$@"; fi
}

# Bind the key (7717), and one that does what Enter does (7718), since the user may have bound Enter to something else.
__wp_bind() {
  builtin local __wp_each
  for __wp_each in emacs vi-insert vi-command; do
    builtin bind -m "$__wp_each" -x '"\e[7717~": __wp_arm "$@"; [[ -z ${__wp_then-} ]] || \builtin eval "$__wp_then"'
    builtin bind -m "$__wp_each" '"\e[7718~": accept-line'
  done
} 2>/dev/null

# Set __wp_p to the path of the daemon's file $1. On a full disk, the file may be in memory. False if it is no plain file: whoever may write to
# the folder may have put something there that never ends (a FIFO, /dev/zero), and the shell must not wait for that.
__wp_file() {
  __wp_p=/dev/shm/.waypoint-$1
  [[ ! -e $__wp_d/$1 && -f $__wp_p && -O $__wp_p && ! -L $__wp_p ]] || __wp_p=$__wp_d/$1
  [[ -f $__wp_p ]]
}

# Set __wp_got to the first line of the file $1, as __wp_file has it, without reading on in a file that is too long. False if there is none.
# The delimiter is a newline, because a `read -e` of the user's, in which the key was pressed, gets the delimiter of the last `read`.
__wp_get() {
  __wp_got=
  __wp_file "$1" || builtin return 1
  __wp_read -r -n 300 __wp_got <"$__wp_p"
  [[ -n $__wp_got ]]
}

__wp_get nonce 2>/dev/null
__wp_s=$__wp_got

# True if the shell may write to the file $1: it is missing, or is a plain file.
__wp_plain_file() {
  [[ ! -L $1 && ( -f $1 || ! -e $1 ) ]]
}

__wp_say() {
  builtin printf '\e]7717;%s\a' "$1" >"$__wp_tty"
}

# Wait until the daemon writes the line for phase $1 (S: start, E: end) into the FIFO `go`. If the daemon has died, opening the FIFO waits
# for the next daemon. Lines for other phases are old and are skipped.
# "E+" instead of "E": the shell, which saves the terminal's modes when a job ends, has saved those of the command. The empty job makes the
# shell save the present modes.
# From a FIFO, bash reads a line byte by byte, but N bytes (read -N) at once. Lines are as long as that for `S`, except for the byte `+`.
__wp_wait() {
  builtin local '__wp_go=' '__wp_tries=0' '__wp_more='
  until [[ $__wp_go == "$1 $__wp_k" ]]; do
    # No daemon makes so many reads fail: the shell cannot open the FIFO (ulimit -n).
    [[ -p $__wp_d/go && $((__wp_tries += 1)) -lt 100 ]] || builtin return 0
    __wp_read -r -N $((${#__wp_k} + 3)) __wp_go <"$__wp_d/go" || __wp_go=$'\n'
    [[ $__wp_go == *$'\n' ]] || { __wp_read -r __wp_more <"$__wp_d/go"; __wp_go+=$__wp_more$'\n'; }
    __wp_go=${__wp_go%$'\n'} __wp_go=${__wp_go##*$'\n'}
    if [[ $__wp_go == "E+ $__wp_k" && $1 == E ]]; then
      ( builtin : )
      builtin return 0
    fi
  done
}

# For the time of the command, set variables that keep programs from waiting for a person (no pager, no password prompt). Variables that are
# readonly, arrays or integers are left alone.
__wp_quiet() {
  builtin local - __wp_v
  builtin set +eu
  __wp_old=()
  for __wp_v in "${__wp_names[@]}"; do
    case ${!__wp_v@a} in
    x) __wp_old+=("$__wp_v=x=${!__wp_v}") ;;
    '') if [[ -v $__wp_v ]]; then __wp_old+=("$__wp_v==${!__wp_v}"); else __wp_old+=("$__wp_v=-"); fi ;;
    *) builtin continue ;;
    esac
    builtin export "$__wp_v=${__wp_values[$__wp_v]}"
  done
}

# Undo __wp_quiet, except for variables that the command has changed.
__wp_loud() {
  builtin local - __wp_o __wp_v
  builtin set +eu
  for __wp_o in "${__wp_old[@]}"; do
    __wp_v=${__wp_o%%=*} __wp_o=${__wp_o#*=}
    [[ ${!__wp_v@a} == x && ${!__wp_v-} == "${__wp_values[$__wp_v]}" ]] || builtin continue
    case $__wp_o in
    -) builtin unset -v "$__wp_v" ;;
    x=*) builtin export "$__wp_v=${__wp_o#x=}" ;;
    *) builtin export -n "$__wp_v=${__wp_o#=}" ;;
    esac
  done
  __wp_old=()
}

# A command whose last part replaces this shell by another one (`exec bash`, `exec "$SHELL" -l`, `exec -l $SHELL`) needs three things: the
# terminal as the stdin of the new shell, the modes that the terminal had before the command, and hooks in the new shell. So for the time of
# such a command `exec` is an alias: it asks the daemon for the modes (__wp_replaced), and sets variables by which bash (PROMPT_COMMAND, after
# all startup files) and zsh (ZDOTDIR) read their hooks. `$$` keeps the hooks out of shells that the new one starts.
__wp_replaces() {
  builtin local '__wp_pat=' # not to be expanded
  __wp_pat='(^|[;&{[:space:]])exec([[:space:]]+-[cl]+|[[:space:]]+-a[[:space:]]+[^][:space:];&|<>()]+)*[[:space:]]+"?(\$\{?(SHELL|BASH)\}?|\$\((which|command -v) [a-z]*sh\)|[^][:space:];&|<>()"$]*sh)"?([[:space:]]+-[-a-z]+)*[;}[:space:]]*$'
  __wp_ea=
  [[ $__wp_op != in && $__wp_c == *exec* && $__wp_c =~ $__wp_pat && ! -v BASH_ALIASES[exec] ]] || builtin return 0
  __wp_ea=1
  BASH_ALIASES[exec]='WAYPOINT_RUN=$__wp_d WAYPOINT_AGAIN="$$:$__wp_seq:${__wp_hs-}:${__wp_old[*]@Q}" PROMPT_COMMAND="$__wp_boot" WAYPOINT_ZDOTDIR=${ZDOTDIR-} ZDOTDIR=${__wp_rc%/*}/zdotdir exec <>"$(__wp_replaced)"'
}
__wp_boot="[[ \$\$ != $$ ]] || . $__wp_rc"
__wp_unalias() {
  [[ -z ${__wp_ea-} ]] || builtin unalias exec
  __wp_ea=
}

# Report that another program is about to replace this shell, wait for the daemon, and print the path of the terminal. Not in a subshell,
# which replaces no shell.
__wp_replaced() {
  [[ $BASH_SUBSHELL == 1 ]] || { builtin printf '%s\n' /dev/stdin; builtin return 0; }
  __wp_say "X;$__wp_n;$__wp_k"
  __wp_wait X
  builtin printf '%s' "$__wp_tty"
}

# Report that the command has ended with status $1. $2: where the end was noticed, Z (the end of the line) or PC (the next prompt).
__wp_fin() {
  # After a command text that ends within a word, the parser of bash 5.2 takes the next reserved word for a plain word. This resets it.
  builtin eval '\builtin :'
  __wp_unalias
  [[ $__wp_op == tty ]] || __wp_loud
  __wp_unguard
  [[ $__wp_c != *bind* ]] || __wp_bind
  __wp_say "E;$__wp_n;$__wp_k;$1;$2"
  __wp_wait E
  __wp_done=$__wp_n __wp_n='' __wp_c=''
}

# A command must not end the session by the way (`cd x || exit 1`, `set -e`): while it runs, the shell has an EXIT trap, by which it writes its state,
# reports the end, and executes a new shell, which the daemon gives that state, in the same process. `exit` alone does end the shell.
__wp_guard() {
  __wp_g='' __wp_et=''
  [[ ! $__wp_c =~ ^[[:space:]]*exit([[:space:]]+[0-9]+)?[[:space:]\;]*$ ]] && __wp_exit_trap || builtin return 0
  __wp_g=1 __wp_et=$__wp_t
  builtin trap 'builtin eval "$__wp_leave"' EXIT
}

# Undo __wp_guard, unless the command has set an EXIT trap.
__wp_unguard() {
  [[ -n ${__wp_g-} ]] || builtin return 0
  __wp_g=
  ! __wp_exit_trap || [[ $__wp_t == *'"$__wp_leave"'* ]] || builtin return 0
  builtin trap - EXIT && builtin eval "$__wp_et"
}

# Set __wp_t to the command that sets the present DEBUG trap, by way of the file that the next prompt overwrites: `$(trap)` forks, and
# is for a file that cannot be written (a full disk, ulimit -f). A trap that is not wrapped yet (__wp_calm) prints to stdout, not to the file.
__wp_trap() {
  [[ -f ${__wp_l-} && ! -L $__wp_l ]] && __wp_may_write && { builtin trap -p DEBUG >&3 && builtin printf '\0' >&3; } 3<>"$__wp_l" && __wp_read -r -d '' __wp_t <"$__wp_l" || __wp_t=$(builtin trap -p DEBUG)
}

# The same for the EXIT trap. This function sees no DEBUG trap, so nothing else prints to its stdout.
__wp_exit_trap() {
  [[ -f ${__wp_l-} && ! -L $__wp_l ]] && __wp_may_write && { builtin trap -p EXIT && builtin printf '\0'; } 1<>"$__wp_l" && __wp_read -r -d '' __wp_t <"$__wp_l" || __wp_t=$(builtin trap -p EXIT)
}

# Wrap the user's DEBUG trap, so that it does not run for commands of the hooks: each of them is in a function of the hooks, or its text has
# `__wp`. `case` keeps $?. Until this is called, a new trap runs for the hooks' commands, so these have their output redirected.
__wp_calm() {
  builtin local __wp_t
  builtin local -a __wp_d0
  __wp_trap
  [[ $__wp_t == 'trap -- '* ]] || builtin return 0
  builtin eval "__wp_d0=(${__wp_t#trap -- })"
  [[ ${__wp_d0[0]} == @(|-|'case ${FUNCNAME-}:'*) ]] || # `-`: none is set, as POSIX mode prints it
    builtin trap -- 'case ${FUNCNAME-}:$BASH_COMMAND in __wp*|*:*__wp*) ;; *) \builtin eval '"${__wp_d0[0]@Q}"';; esac' DEBUG
}
builtin declare -ft __wp_calm __wp_trap # functions with this attribute see the DEBUG trap

# The EXIT trap. "$@": the positional parameters. `set -e`, and traps that run at a failure or at each command, are no part of the state, else the
# new shell could end at once. Where the folder has no room for the state, it goes into memory.
__wp_leave='{ { __wp_r=$?; \builtin set +e; \builtin trap - ERR DEBUG RETURN; __wp_unguard; __wp_unalias; [[ $__wp_op == tty ]] || __wp_loud; __wp_rest=0 __wp_c=; } >/dev/null 2>&1
{ \builtin trap -p; __wp_keep "$SHELLOPTS" "$@"; [[ -z $__wp_lost ]]; } 2>/dev/null 1<>"${__wp_l:-/dev/null}" || { __wp_rest=0; __wp_aside && { \builtin trap -p; __wp_keep "$SHELLOPTS" "$@"; } 1<>"$__wp_l"; } 2>/dev/null
{ __wp_left; } >/dev/null 2>&1; }'
__wp_left() {
  builtin local '__wp_place='
  [[ $__wp_w == "$__wp_d/" ]] || __wp_place=:aside
  __wp_say "E;$__wp_n;$__wp_k;$__wp_r;X"
  __wp_wait E
  builtin export "WAYPOINT_RUN=$__wp_d" "WAYPOINT_STATE=$__wp_seq:${__wp_hs-}$__wp_place"
  builtin exec "$BASH" --rcfile "$__wp_rc" -i <>"$__wp_tty" >&0 2>&0
}

builtin . "${__wp_rc%/*}/state.bash"

# Runs before each prompt, in PROMPT_COMMAND: reports an ended command and the prompt, and writes the shell's state, of which __wp_cmd has
# written the traps, to stdout. "$@": the positional parameters. All locals begin with __wp, as in __wp_arm.
__wp_cmd='{ __wp_may=; __wp_able; __wp_calm;} 2>/dev/null >"${__wp_z0[__wp_r=$?]-}/dev/null"; { __wp_unguard; \builtin trap -p ${__wp_z0-}; __wp_pc "$@"; } 2>/dev/null 1<>"${__wp_l:-/dev/null}" || { __wp_l=; __wp_unguard; __wp_pc "$@"; } >/dev/null 2>&1'
__wp_pc() {
  builtin local '__wp_e=none' __wp_line_rest
  # If ^C breaks off a `read` of a file, the next `read`, of any file, gets what this one had read ahead (bash 5.2). This reads it away.
  __wp_read -r -d '' __wp_line_rest </dev/null || builtin :
  __wp_multibyte
  [[ -z ${__wp_n-} ]] || __wp_fin "$__wp_r" PC
  __wp_at=1
  __wp_hook
  __wp_branch
  __wp_keep "$SHELLOPTS" "$@"
  if [[ -z $__wp_first ]]; then
    __wp_tell
  else # the last state of the shell before stays in the folder
    [[ -z $__wp_lost ]] || { __wp_rest=0; __wp_aside && __wp_keep "$SHELLOPTS" "$@" 1<>"$__wp_l"; }
    __wp_first=
    __wp_back
  fi
  __wp_show
  if [[ -o emacs || -o vi ]]; then __wp_e=bash; fi
  __wp_say "P;$$;$__wp_s;$__wp_e"
  builtin return 0
}

# Put the hooks into PROMPT_COMMAND, PS0 and PS2, where the user has removed them. PS0 and PS2 print nothing; they set __wp_at, which tells
# where the shell is: 0 in a command, 1 at the prompt, 2 in a continued line.
__wp_hook() {
  builtin local -; builtin set +u
  [[ ${PS0@a} == *r* || ${PS0-} == *__wp_at=0* ]] || PS0='${__wp_z0[__wp_at=0]-}'${PS0-}
  [[ ${PS2@a} == *r* || ${PS2-} == *__wp_at=2* ]] || PS2='${__wp_z0[__wp_at=2]-}'${PS2-}
  [[ ${PROMPT_COMMAND[*]@a} == *r* || ${PROMPT_COMMAND[977]-} == "$__wp_cmd" ]] || PROMPT_COMMAND[977]=$__wp_cmd
}

# In a copy of a session, the shell still has the name of the original's branch. Read the copy's name, which the daemon has written into the
# file `branch`, and set WAYPOINT_BRANCH, unless the user has changed that variable.
__wp_branch() {
  builtin local - __wp_name __wp_got __wp_p
  builtin set +eu
  __wp_get branch || builtin return 0
  __wp_name=$__wp_got
  [[ $__wp_name != "$__wp_b" ]] || builtin return 0
  if [[ -n $__wp_b && ${WAYPOINT_BRANCH-} == "$__wp_b" ]]; then builtin export "WAYPOINT_BRANCH=$__wp_name"; fi
  __wp_b=$__wp_name
}

# Show the branch before the user's prompt. PS1 itself gets the same text on every branch, which bash replaces by $__wp_ps whenever it draws
# the prompt: so a copy of the session shows its own branch. WAYPOINT_PROMPT=off switches it off.
__wp_show() {
  builtin local -
  builtin set +eu
  if [[ ${WAYPOINT_PROMPT-} == off ]] || ! builtin shopt -q promptvars; then
    __wp_plain
  elif [[ -n ${PS1-} && -n $__wp_b && ${PS1@a} != *r* ]]; then
    __wp_ps="[$__wp_b] "
    [[ $PS1 == *'${__wp_ps-}'* ]] || PS1='${__wp_ps-}'$PS1
  fi
}

# Undo __wp_show, until the next prompt: a command finds the user's own PS1.
__wp_plain() {
  builtin local -
  builtin set +eu
  [[ ${PS1-} != *'${__wp_ps-}'* || ${PS1@a} == *r* ]] || PS1=${PS1/'${__wp_ps-}'/}
}

# Switch off what __wp_take has switched on for drawing the evaluating line.
__wp_multibyte() {
  builtin bind 'set byte-oriented off'
}

# __wp and __wp_z are the first and the last part of the line that evaluates the command. Each returns the status $? that it found.
__wp() {
  builtin local "__wp_was=$?"
  __wp_multibyte
  __wp_branch
  __wp_plain
  ! __wp_file "cmd.$__wp_n" || __wp_read -r -d '' __wp_c <"$__wp_p" || builtin :
  [[ $__wp_c != *$'\n'* ]] || __wp_check
  case $- in *x*) builtin set +x; __wp_c="set -x; $__wp_c" ;; esac
  __wp_history
  [[ $__wp_op == tty ]] || __wp_quiet
  __wp_guard
  __wp_replaces
  __wp_may=
  __wp_say "S;$__wp_n;$__wp_k"
  __wp_wait S
  builtin return "$__wp_was"
}
__wp_z() {
  \builtin local "__wp_was=$?"
  __wp_able
  # `eval` of a text with an unfinished `$(` returns 1 in an interactive shell, and 2 for all other syntax errors. Report 2 for both.
  [[ $__wp_was != 1 || $__wp_c != *'$('* ]] || __wp_parses || __wp_was=2
  __wp_fin "$__wp_was" Z
  builtin return "$__wp_was"
}

# Parse a command of several lines as a whole before its first line runs. With extglob, as line 1 may switch that on for line 2.
__wp_check() {
  if ! __wp_m=$(__wp_parses 2>&1); then __wp_c='builtin printf "%s\n" "$__wp_m"; (exit 2)'; fi
}
__wp_parses() {
  BASH_ENV= "$BASH" -O extglob -n <"$__wp_p"
}

# Restore the user's HISTCONTROL, which __wp_ignorespace has changed, before the command runs. Where HISTCONTROL is readonly, delete the
# evaluating line from the history.
__wp_history() {
  case ${__wp_hc-} in
  r) [[ ${HISTCONTROL-} == *ignore@(space|both)* ]] || builtin history -d -1 ;;
  -) builtin unset -v HISTCONTROL ;;
  *) HISTCONTROL=${__wp_hc#=} ;;
  esac
}

# The key's function: read the request from the file `req` and serve it. "$@": the positional parameters. All locals begin with __wp, so that they hide none of the user's
# variables from the request `state`.
__wp_arm() {
  \builtin local "__wp_was=$?" __wp_word __wp_id __wp_nonce __wp_got
  __wp_able
  __wp_get req || builtin return 0
  __wp_word=${__wp_got%% *} __wp_nonce=${__wp_got##* } __wp_id=${__wp_got#* } __wp_id=${__wp_id%% *}
  __wp_clean
  case $__wp_word in
  exec | in | tty) __wp_take "$__wp_word" "$__wp_id" "$__wp_nonce" ;;
  rest)
    READLINE_LINE=${__wp_line-}$READLINE_LINE READLINE_POINT=$((READLINE_POINT + ${__wp_pt:-0}))
    __wp_line='' __wp_pt=0
    __wp_say "R;$__wp_id;$__wp_nonce"
    ;;
  stat) __wp_say "T;$__wp_id;$__wp_nonce;$__wp_was;${__wp_at-};${__wp_n-}" ;;
  state)
    # Served once: the key of an earlier request, read late, may find this one, and the daemon takes the file at the first answer.
    [[ $__wp_id != "${__wp_stated-}" ]] || builtin return 0
    __wp_stated=$__wp_id
    __wp_branch
    __wp_believe
    if [[ ${__wp_at-} == 0 ]]; then __wp_say "B;$__wp_id;$__wp_nonce;at=0"; builtin return 0; fi
    __wp_f=$__wp_d/state.$__wp_id __wp_kept="K;$__wp_id;$__wp_nonce"
    __wp_r=$__wp_was
    if [[ -f $__wp_f ]] && __wp_may_write && __wp_remember && __wp_state '' "$SHELLOPTS" "$@" >|"$__wp_f"; then __wp_then='\builtin printf "t\0\0\0" >>"$__wp_f" && \builtin trap -p >>"$__wp_f" && __wp_kept ok || __wp_kept failed'; else __wp_kept failed; fi
    ;;
  esac
  builtin return 0
} 2>/dev/null

# Correct __wp_at. If the user has removed __wp_pc from PROMPT_COMMAND, nothing has set __wp_at back to 1 after the last command, so a 0 may
# be outdated.
__wp_believe() {
  [[ ${PROMPT_COMMAND[977]-} == "$__wp_cmd" || ${__wp_at-} == 2 ]] || __wp_at=1
}

# Prepare to run a command. $1: `exec`, `in` (stdin from a FIFO) or `tty` (the terminal as stdin); $2: the request's id; $3: its nonce.
__wp_take() {
  # A new daemon repeats the request of a daemon that has died: the line may be in place already, or have run.
  if [[ ${__wp_n-} == "$2" ]]; then __wp_say "A;$2;$3;${#__wp_line};key"; builtin return 0; fi
  if [[ ${__wp_done-} == "$2" ]]; then builtin return 0; fi
  __wp_believe
  if [[ ${__wp_at-} != 1 ]]; then __wp_say "B;$2;$3;at=${__wp_at-}"; builtin return 0; fi
  __wp_hook
  __wp_op=$1 __wp_n=$2 __wp_k=$3 __wp_line=$READLINE_LINE __wp_pt=$READLINE_POINT
  __wp_ignorespace
  # readline 8.2 hangs when it draws certain lines of multibyte characters that are wider than the terminal, if the terminal cannot move the
  # cursor up (TERM=dumb or unknown). So the line is short and drawn byte by byte; __wp_multibyte undoes that before the next typed key.
  builtin bind 'set byte-oriented on'
  case $1 in
  tty) __wp_x='{ { __wp&&\builtin : __wp;} 2>/dev/null;\builtin eval " $__wp_c";};{ __wp_z&&\builtin : __wp;} >/dev/null 2>&1' ;;
  *)
    if [[ $1 == in ]]; then __wp_i=$__wp_d/in.$2; else __wp_i=/dev/null; fi
    __wp_x='{ { __wp&&\builtin : __wp;} 2>/dev/null;\builtin eval " $__wp_c";} <"$__wp_i";{ __wp_z&&\builtin : __wp;} >/dev/null 2>&1'
    ;;
  esac
  READLINE_LINE=' \builtin eval "$__wp_x"'
  READLINE_POINT=${#READLINE_LINE}
  __wp_say "A;$2;$3;${#__wp_line};key"
}

__wp_ignorespace() {
  builtin local -; builtin set +u
  if [[ ${HISTCONTROL@a} == *r* ]]; then __wp_hc=r; builtin return; fi
  if [[ -v HISTCONTROL ]]; then __wp_hc==$HISTCONTROL; else __wp_hc=-; fi
  HISTCONTROL=ignorespace
}

# Remove the characters of an earlier press of the key that readline did not recognise (after ESC, ^X or in a search) before the cursor.
__wp_clean() {
  builtin local __wp_j
  for __wp_j in '[7717~' '7717~'; do
    if [[ ${READLINE_LINE:0:READLINE_POINT} == *"$__wp_j" ]]; then
      READLINE_LINE=${READLINE_LINE:0:READLINE_POINT-${#__wp_j}}${READLINE_LINE:READLINE_POINT}
      READLINE_POINT=$((READLINE_POINT - ${#__wp_j}))
    fi
  done
}

if [[ -n $__wp_s ]]; then
  __wp_bind
  __wp_at=0 __wp_b= __wp_most=1000000
  [[ -n $__wp_w ]] && __wp_aside || __wp_back
  __wp_branch 2>/dev/null
  __wp_v=
  [[ ! -v PROMPT_COMMAND || ${PROMPT_COMMAND@a} != *a* ]] || __wp_v=1
  __wp_hook
fi
builtin shopt "$__wp_aliases" expand_aliases
if [[ -v WAYPOINT_AGAIN ]]; then # in the place of a shell that a command has replaced, before this shell's first prompt
  __wp_loud
  if [[ ${ZDOTDIR-} == "${__wp_rc%/*}/zdotdir" ]]; then
    if [[ -n ${WAYPOINT_ZDOTDIR-} ]]; then ZDOTDIR=$WAYPOINT_ZDOTDIR; else builtin unset -v ZDOTDIR; fi
  fi
  PROMPT_COMMAND=${PROMPT_COMMAND/"$__wp_boot"/:}
  builtin declare +x PROMPT_COMMAND
  builtin unset -v WAYPOINT_AGAIN WAYPOINT_ZDOTDIR
  # bash runs the elements that a startup file has given to PROMPT_COMMAND, and so __wp_cmd, too.
  [[ -n $__wp_v ]] || builtin eval "$__wp_cmd"
fi
builtin unset -v __wp_v __wp_aliases
