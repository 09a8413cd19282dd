# bash reads this as its rc file. It reads the user's own first, then adds what lets the daemon run a command line in this very shell:
# as if typed, with nothing of ours left open or running. What the files and marks mean: docs/protocol.md, section 3.
#
# Why it looks as it does:
# - The key's function only swaps the line. A command run from `bind -x` would have readline's terminal modes, and lose $?.
# - The command is evaluated at top level, not in a function: else `declare` is local, `$@` hidden, and ^C skips the end mark.
# - The key's command is one plain word: in a continued line (PS2) the parser would not know `{` for what it is.
# - `{ ...;} 2>/dev/null` hides a trace (set -x); `cmd&&:` hands a status on without setting off `set -e` or the ERR trap.
# - No word is ever typed by the daemon: the text comes from a file, so quotes, `!`, newlines and the person's half line do not matter.

[[ ! -r ~/.bashrc ]] || . ~/.bashrc

if \builtin shopt -q expand_aliases; then __wp_aliases=-s; else __wp_aliases=-u; fi
\builtin shopt -u expand_aliases # so that no alias gets into the functions below

__wp_d=${WAYPOINT_RUN:-/run/waypoint}
builtin unset -v WAYPOINT_RUN
IFS= builtin read -r __wp_s 2>/dev/null <"$__wp_d/nonce"
__wp_keys=(PAGER GIT_PAGER MANPAGER SYSTEMD_PAGER GIT_TERMINAL_PROMPT)
builtin declare -A __wp_values
__wp_values=([PAGER]=cat [GIT_PAGER]=cat [MANPAGER]=cat [SYSTEMD_PAGER]=cat [GIT_TERMINAL_PROMPT]=0)

# The terminal by its own name: CRIU refuses a process that has /dev/tty open at that moment, and marks are said all the time.
for __wp_tty in /dev/pts/[0-9]* /dev/tty; do [[ ! $__wp_tty -ef /proc/self/fd/0 ]] || break; done

__wp_say() {
  builtin printf '\e]7717;%s\a' "$1" >"$__wp_tty"
}

# Wait for the daemon's line. Each open of the FIFO waits for a daemon that died to come back; a line for another phase is an old one.
# "E+": the shell has saved the terminal's modes of the command's time as its own (it does when a job has ended). A job that does
# nothing makes it save those of now.
__wp_wait() {
  local l=
  until [[ $l == "$1 $__wp_k" ]]; do
    [[ -p $__wp_d/go ]] || return 0
    IFS= builtin read -r l <"$__wp_d/go" || l=
    if [[ $l == "E+ $__wp_k" && $1 == E ]]; then
      ( : )
      return 0
    fi
  done
}

# Put programs that would wait for a person into their quiet ways, for the time of the command. Only plain variables that may be set.
__wp_quiet() {
  local - v
  builtin set +eu
  __wp_old=()
  for v in "${__wp_keys[@]}"; do
    case ${!v@a} in
    x) __wp_old+=("$v=x=${!v}") ;;
    '') if [[ -v $v ]]; then __wp_old+=("$v==${!v}"); else __wp_old+=("$v=-"); fi ;;
    *) continue ;;
    esac
    builtin export "$v=${__wp_values[$v]}"
  done
}

# Undo it where the command has not set the variable itself.
__wp_loud() {
  local - o v
  builtin set +eu
  for o in "${__wp_old[@]}"; do
    v=${o%%=*} o=${o#*=}
    [[ ${!v@a} == x && ${!v-} == "${__wp_values[$v]}" ]] || continue
    case $o in
    -) builtin unset -v "$v" ;;
    x=*) builtin export "$v=${o#x=}" ;;
    *) builtin export -n "$v=${o#=}" ;;
    esac
  done
  __wp_old=()
}

# The command has ended with status $1; $2 says how that was found.
__wp_fin() {
  # Text that ends within a word leaves the parser (5.2) in a state where it takes the next reserved word for a plain one. This clears it.
  builtin eval :
  [[ $__wp_op == tty ]] || __wp_loud
  __wp_say "E;$__wp_n;$__wp_k;$1;$2"
  __wp_wait E
  __wp_done=$__wp_n __wp_n='' __wp_c=''
}

# Before each prompt.
__wp_pc() {
  local r=$? e=none
  __wp_many
  [[ -z ${__wp_n-} ]] || __wp_fin "$r" PC
  __wp_at=1
  __wp_hook
  __wp_branch
  if [[ -o emacs || -o vi ]]; then e=bash; fi
  __wp_say "P;$$;$__wp_s;$e"
  return 0
} 2>/dev/null

# PS0 and PS2 only note, in this process, that a command runs or that the line goes on: they print nothing.
__wp_hook() {
  local -; builtin set +u
  [[ ${PS0@a} == *r* || ${PS0-} == *__wp_at=0* ]] || PS0='${__wp_z0[__wp_at=0]-}'${PS0-}
  [[ ${PS2@a} == *r* || ${PS2-} == *__wp_at=2* ]] || PS2='${__wp_z0[__wp_at=2]-}'${PS2-}
  [[ ${PROMPT_COMMAND[*]@a} == *r* || ${PROMPT_COMMAND[977]-} == __wp_pc ]] || PROMPT_COMMAND[977]=__wp_pc
}

# In a copy of the session the shell remembers the original's branch. The daemon has written down the copy's; the variable follows unless
# it was changed.
__wp_branch() {
  local - b
  builtin set +eu
  IFS= builtin read -r b 2>/dev/null <"$__wp_d/branch" || return 0
  [[ $b != "$__wp_b" ]] || return 0
  if [[ -n $__wp_b && ${WAYPOINT_BRANCH-} == "$__wp_b" ]]; then builtin export WAYPOINT_BRANCH="$b"; fi
  __wp_b=$b
}

__wp_many() {
  builtin bind 'set byte-oriented off'
}

# First and last thing on the line that the key puts there. Each hands on the status it found.
__wp() {
  local r=$?
  __wp_many
  __wp_branch
  IFS= builtin read -r -d '' __wp_c <"$__wp_d/cmd.$__wp_n" || :
  [[ $__wp_c != *$'\n'* ]] || __wp_check
  case $- in *x*) builtin set +x; __wp_c="set -x; $__wp_c" ;; esac
  __wp_history
  [[ $__wp_op == tty ]] || __wp_quiet
  __wp_say "S;$__wp_n;$__wp_k"
  __wp_wait S
  return "$r"
}
__wp_z() {
  local r=$?
  # Of an unfinished `$(` an interactive `eval` says 1, where all else that does not parse gives 2.
  [[ $r != 1 || $__wp_c != *'$('* ]] || __wp_parses || r=2
  __wp_fin "$r" Z
  return "$r"
}

# Text of several lines is read as a whole before its first line runs. extglob: `shopt -s extglob` in line 1 must not make line 2 an error.
__wp_check() {
  if ! __wp_m=$(__wp_parses 2>&1); then __wp_c='builtin printf "%s\n" "$__wp_m"; (exit 2)'; fi
}
__wp_parses() {
  BASH_ENV= "$BASH" -O extglob -n <"$__wp_d/cmd.$__wp_n"
}

# The line starts with a space: with ignorespace it stays out of the history. The user's own setting comes back before the command.
__wp_history() {
  case ${__wp_hc-} in
  r) [[ ${HISTCONTROL-} == *ignore@(space|both)* ]] || builtin history -d -1 ;;
  -) builtin unset -v HISTCONTROL ;;
  *) HISTCONTROL=${__wp_hc#=} ;;
  esac
}

# The key was pressed. Locals have names of ours: `state` is to see the user's variables, which others would hide.
__wp_arm() {
  local __wp_was=$? __wp_word __wp_id __wp_key
  IFS=' ' builtin read -r __wp_word __wp_id __wp_key <"$__wp_d/req" || return 0
  __wp_clean
  __wp_branch
  case $__wp_word in
  exec | in | tty) __wp_take "$__wp_word" "$__wp_id" "$__wp_key" ;;
  rest)
    READLINE_LINE=${__wp_line-}$READLINE_LINE READLINE_POINT=$((READLINE_POINT + ${__wp_pt:-0}))
    __wp_line='' __wp_pt=0
    __wp_say "R;$__wp_id;$__wp_key"
    ;;
  stat) __wp_say "T;$__wp_id;$__wp_key;$__wp_was;${__wp_at-};${__wp_n-}" ;;
  state)
    __wp_believe
    if [[ ${__wp_at-} == 0 ]]; then __wp_say "B;$__wp_id;$__wp_key;at=0"; return 0; fi
    __wp_f=$__wp_d/state.$__wp_id __wp_kept="K;$__wp_id;$__wp_key"
    if __wp_state "$SHELLOPTS"; then __wp_then='\builtin trap -p >>"$__wp_f" && __wp_kept ok || __wp_kept failed'; else __wp_kept failed; fi
    ;;
  esac
  return 0
} 2>/dev/null

# Without our part in PROMPT_COMMAND nothing has set the flag back after the last command: only "2" can be believed.
__wp_believe() {
  [[ ${PROMPT_COMMAND[977]-} == __wp_pc || ${__wp_at-} == 2 ]] || __wp_at=1
}

# Write down all but the traps, which a function does not see: the key's line adds them. $1: the user's options, as they are changed here.
# Into a file that is there already: its mode is right then, and an answer that comes too late leaves nothing.
__wp_state() {
  local - __wp_v
  local -a __wp_vs __wp_ds=("${DIRSTACK[@]:1}") # which says `~` for the home
  builtin set +efnuxv
  [[ -f $__wp_f ]] && builtin declare -F >|"$__wp_f" && builtin mapfile -t __wp_vs <"$__wp_f" || return 1
  {
    builtin printf 'o\0\0%s\0%s\0' "$1" "$BASHOPTS" &&
      builtin printf 'd\0\0\0%s\0' "$PWD" "${__wp_ds[@]/#\~/"$HOME"}" &&
      builtin printf 'm\0\0\0' && builtin umask && builtin printf '\0l\0\0\0' && builtin ulimit -Sa && builtin printf '\0v\0\0\0' &&
      builtin declare -p && builtin printf '\0' &&
      for __wp_v in "${!BASH_ALIASES[@]}"; do builtin printf 'a\0%s\0\0%s\0' "$__wp_v" "${BASH_ALIASES[$__wp_v]}" || return 1; done &&
      for __wp_v in "${__wp_vs[@]}"; do
        [[ $__wp_v != *' __wp'* ]] || continue
        builtin printf 'f\0%s\0%s\0' "${__wp_v##* }" "${__wp_v% *}" && builtin declare -f -- "${__wp_v##* }" && builtin printf '\0' || return 1
      done &&
      builtin printf 't\0\0\0'
  } >|"$__wp_f"
}

# The last of it. $1: whether all went well.
__wp_kept() {
  __wp_then=
  [[ $1 != ok ]] || builtin printf '\0e\0\0\0\0' >>"$__wp_f" || builtin set -- failed
  __wp_say "$__wp_kept;$1"
} 2>/dev/null

__wp_take() {
  # Asked twice, as a daemon does whose predecessor died with the key just sent: the line is in place, or has run already.
  if [[ ${__wp_n-} == "$2" ]]; then __wp_say "A;$2;$3;${#__wp_line}"; return 0; fi
  if [[ ${__wp_done-} == "$2" ]]; then return 0; fi
  __wp_believe
  if [[ ${__wp_at-} != 1 ]]; then __wp_say "B;$2;$3;at=${__wp_at-}"; return 0; fi
  __wp_hook
  __wp_op=$1 __wp_n=$2 __wp_k=$3 __wp_line=$READLINE_LINE __wp_pt=$READLINE_POINT
  __wp_ignorespace
  # readline 8.2 hangs in drawing some lines of multibyte characters that are wider than a terminal which cannot move up (TERM=dumb, an
  # unknown one). Hence a short line, drawn byte by byte; __wp_many takes that back before anybody types again.
  builtin bind 'set byte-oriented on'
  case $1 in
  tty) __wp_x='{ { __wp&&:;} 2>/dev/null;\builtin eval " $__wp_c";};{ __wp_z;} 2>/dev/null&&:' ;;
  *)
    if [[ $1 == in ]]; then __wp_i=$__wp_d/in.$2; else __wp_i=/dev/null; fi
    __wp_x='{ { __wp&&:;} 2>/dev/null;\builtin eval " $__wp_c";} <"$__wp_i";{ __wp_z;} 2>/dev/null&&:'
    ;;
  esac
  READLINE_LINE=' \builtin eval "$__wp_x"'
  READLINE_POINT=${#READLINE_LINE}
  __wp_say "A;$2;$3;${#__wp_line}"
}

__wp_ignorespace() {
  local -; builtin set +u
  if [[ ${HISTCONTROL@a} == *r* ]]; then __wp_hc=r; return; fi
  if [[ -v HISTCONTROL ]]; then __wp_hc==$HISTCONTROL; else __wp_hc=-; fi
  HISTCONTROL=ignorespace
}

# What a first, unheard press of the key has left before the cursor (after ESC, ^X or in a search).
__wp_clean() {
  local j
  for j in '[7717~' '7717~'; do
    if [[ ${READLINE_LINE:0:READLINE_POINT} == *"$j" ]]; then
      READLINE_LINE=${READLINE_LINE:0:READLINE_POINT-${#j}}${READLINE_LINE:READLINE_POINT}
      READLINE_POINT=$((READLINE_POINT - ${#j}))
    fi
  done
}

if [[ -n $__wp_s ]]; then
  for __wp_v in emacs vi-insert vi-command; do
    builtin bind -m "$__wp_v" -x '"\e[7717~": __wp_arm; [[ -z ${__wp_then-} ]] || \builtin eval "$__wp_then"'
  done 2>/dev/null
  __wp_at=0 __wp_b=
  __wp_branch
  __wp_hook
fi
builtin shopt "$__wp_aliases" expand_aliases
builtin unset -v __wp_v __wp_aliases
