# The hooks of zsh, read at the first prompt (see .zshenv). The functions do what those of the same names in ../hooks.bash do, and for the
# same reasons. The differences:
# - The widget __wp_arm itself puts the person's line aside (push-line, which restores it at the next prompt) and accepts the new line.
# - The end mark is in an `always` block, which runs after ^C, too. If it does not run, the precmd function reports the end.
# - $CONTEXT tells a first line from a continued one.
# - A text is parsed without running it by making it the body of a function.
# - The branch stands before the prompt as plain text between two empty `%{%}`, by which it is found again: without the option prompt_subst, zsh
#   replaces no variables in a prompt.
# Code that must not depend on the user's options is in functions with `emulate -L zsh`.

typeset -g __wp_d=${WAYPOINT_RUN:-/run/waypoint} __wp_s= __wp_n= __wp_k= __wp_c= __wp_op= __wp_i= __wp_done= __wp_b= __wp_xt= __wp_stated= __wp_r=0 __wp_l= __wp_hs= __wp_hn= __wp_opts= __wp_lost= __wp_told=
typeset -gi __wp_seq=0 __wp_rest=0 __wp_most=1000
[[ ${WAYPOINT_STATE-} != <->:* ]] || { __wp_seq=${WAYPOINT_STATE%%:*} __wp_hs=${WAYPOINT_STATE#*:} }
typeset -ga __wp_args=() # the positional parameters at the last prompt, behind one more
typeset -g __wp_tty=$TTY
typeset -g __wp_rc=$__wp_here
unset WAYPOINT_RUN WAYPOINT_STATE
typeset -ga __wp_old=()
if [[ ${WAYPOINT_AGAIN-} == <->:<->:* ]]; then # pid, __wp_seq, __wp_hs, __wp_old
  () {
    local -a f
    f=("${(@s.:.)WAYPOINT_AGAIN}")
    __wp_seq=$f[2] __wp_hs=$f[3]
    builtin eval "__wp_old=(${(j.:.)${(@)f[4,-1]}})"
  }
fi

# Enable the builtins that the hooks use, as in bash. A function `builtin` is removed.
__wp_able() {
  (( ! ${+functions[builtin]} )) || \unfunction builtin
  \enable bindkey builtin emulate eval exec fc print printf read return set setopt trap typeset ulimit umask unalias unset zle || (( 1 ))
} 2>/dev/null

# Bind the key.
__wp_bind() {
  builtin emulate -L zsh
  local __wp_each
  builtin zle -N __wp_arm
  for __wp_each in emacs viins vicmd isearch; do builtin bindkey -M $__wp_each '\e[7717~' __wp_arm; done
} 2>/dev/null

# `read` of a whole line, with the user's IFS where that is readonly.
__wp_read() {
  if [[ ${(t)IFS} == *readonly* ]]; then builtin read "$@"; else IFS= builtin read "$@"; fi
}

__wp_file() {
  typeset -g __wp_p=/dev/shm/.waypoint-$1
  [[ ! -e $__wp_d/$1 && -f $__wp_p && -O $__wp_p && ! -L $__wp_p ]] || __wp_p=$__wp_d/$1
  [[ -f $__wp_p ]]
}

__wp_get() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn
  typeset -g __wp_got=
  __wp_file "$1" || builtin return 1
  __wp_read -r -u 0 -k 300 __wp_got <"$__wp_p"
  __wp_got=${__wp_got%%[$'\n\0']*}
  [[ -n $__wp_got ]]
} 2>/dev/null

__wp_get nonce
__wp_s=$__wp_got

__wp_plain_file() {
  [[ ! -L $1 && ( -f $1 || ! -e $1 ) ]]
}

__wp_empty() {
  local __wp_each
  for __wp_each in "$__wp_d"/last.{0,1}; do [[ ! -f $__wp_each || -L $__wp_each ]] || builtin : >|"$__wp_each"; done
} 2>/dev/null

__wp_say() {
  builtin printf '\e]7717;%s\a' "$1" >"${__wp_tty:-/dev/tty}"
}

__wp_wait() {
  builtin emulate -L zsh
  local __wp_go=
  local -i __wp_tries=0
  until [[ $__wp_go == "$1 $__wp_k" ]]; do
    [[ -p $__wp_d/go ]] && (( ++__wp_tries < 100 )) || builtin return 0
    __wp_read -r __wp_go <"$__wp_d/go" || __wp_go=
    if [[ $__wp_go == "E+ $__wp_k" && $1 == E ]]; then
      ( : )
      builtin return 0
    fi
  done
}

__wp_quiet() {
  builtin emulate -L zsh
  local __wp_v __wp_w
  __wp_old=()
  for __wp_v in PAGER GIT_PAGER MANPAGER SYSTEMD_PAGER GIT_TERMINAL_PROMPT; do
    case ${(tP)__wp_v} in
    '') __wp_old+=("$__wp_v=-") ;;
    scalar) __wp_old+=("$__wp_v==${(P)__wp_v}") ;;
    scalar-export) __wp_old+=("$__wp_v=x=${(P)__wp_v}") ;;
    *) builtin continue ;;
    esac
    if [[ $__wp_v == GIT_TERMINAL_PROMPT ]]; then __wp_w=0; else __wp_w=cat; fi
    typeset -gx "$__wp_v=$__wp_w"
  done
}

__wp_loud() {
  builtin emulate -L zsh
  local __wp_o __wp_v __wp_w
  for __wp_o in "${(@)__wp_old}"; do
    __wp_v=${__wp_o%%=*} __wp_o=${__wp_o#*=}
    if [[ $__wp_v == GIT_TERMINAL_PROMPT ]]; then __wp_w=0; else __wp_w=cat; fi
    [[ ${(tP)__wp_v} == scalar-export && ${(P)__wp_v} == "$__wp_w" ]] || builtin continue
    case $__wp_o in
    -) builtin unset "$__wp_v" ;;
    x=*) typeset -gx "$__wp_v=${__wp_o#x=}" ;;
    *) typeset -g +x "$__wp_v=${__wp_o#=}" ;;
    esac
  done
  __wp_old=()
}

__wp_fin() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn
  (( ! ZSH_SUBSHELL )) || builtin return 0 # if a job of the line is stopped, zsh runs the rest of the line in a fork of itself
  __wp_unalias
  [[ $__wp_op == tty ]] || __wp_loud
  [[ $__wp_c != *(bindkey|zle)* ]] || __wp_bind
  __wp_say "E;$__wp_n;$__wp_k;$1;$2"
  __wp_wait E
  __wp_done=$__wp_n __wp_n= __wp_c=
}

__wp_replaces() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn
  local __wp_pat='(^|[;&{[:space:]])exec([[:space:]]+-[cl]+|[[:space:]]+-a[[:space:]]+[^][:space:];&|<>()]+)*[[:space:]]+"?(\$\{?SHELL\}?|\$\((which|command -v) [a-z]*sh\)|[^][:space:];&|<>()"$]*sh)"?([[:space:]]+-[-a-z]+)*[;}[:space:]]*$'
  typeset -g __wp_ea=
  [[ $__wp_op != in && $__wp_c == *exec* && $__wp_c =~ $__wp_pat ]] && (( ! ${+aliases[exec]} )) || builtin return 0
  __wp_ea=1
  aliases[exec]='WAYPOINT_RUN=$__wp_d WAYPOINT_AGAIN="$$:$__wp_seq:$__wp_hs:${(j: :)${(@qq)__wp_old}}" PROMPT_COMMAND="[[ \$\$ != $$ ]] || . ${__wp_rc:h}/hooks.bash" WAYPOINT_ZDOTDIR=${ZDOTDIR-} ZDOTDIR=$__wp_rc exec <>"$(__wp_replaced)"'
}
__wp_unalias() {
  [[ -z ${__wp_ea-} ]] || builtin unalias exec
  __wp_ea=
}
__wp_replaced() {
  [[ $ZSH_SUBSHELL == 1 ]] || { builtin print -r -- /dev/stdin; builtin return 0 }
  __wp_say "X;$__wp_n;$__wp_k"
  __wp_wait X
  builtin print -rn -- "${__wp_tty:-/dev/tty}"
}

# Runs when `exit` is about to end the shell; does what __wp_leave does in bash. By then zsh has sent SIGHUP to its jobs, unless `setopt nohup`. zsh
# calls no function when `set -e` ends it.
__wp_left() {
  local __wp_was=$?
  local -a __wp_options
  __wp_options=("${(@kv)options[@]}" errexit off)
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn noxtrace
  [[ -n $__wp_n && ! $__wp_c =~ '^[[:space:]]*exit([[:space:]]+[0-9]+)?[[:space:];]*$' ]] && (( ! ZSH_SUBSHELL )) || builtin return 0
  __wp_unalias
  [[ $__wp_op == tty ]] || __wp_loud
  __wp_next
  [[ -n $__wp_l ]] || builtin return 0
  __wp_c= # which is no part of the state
  builtin trap - ZERR DEBUG
  builtin unset -f TRAPERR TRAPZERR TRAPDEBUG
  __wp_r=$__wp_was __wp_rest=0 __wp_opts="${(j: :)__wp_options}"
  __wp_keep "${(@)__wp_args}"
  __wp_say "E;$__wp_n;$__wp_k;$__wp_was;X"
  __wp_wait E
  (( ! ${+ZDOTDIR} )) || typeset -gx WAYPOINT_ZDOTDIR=$ZDOTDIR
  local __wp_v=/proc/self/exe
  typeset -gx WAYPOINT_RUN=$__wp_d WAYPOINT_STATE=$__wp_seq:$__wp_hs ZDOTDIR=$__wp_rc
  exec "${__wp_v:A}" -i <>"$__wp_tty" >&0 2>&0
} 2>/dev/null

__wp_branch() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn
  local __wp_name __wp_got __wp_p
  __wp_get branch || builtin return 0
  __wp_name=$__wp_got
  [[ $__wp_name != "$__wp_b" ]] || builtin return 0
  if [[ -n $__wp_b && ${WAYPOINT_BRANCH-} == "$__wp_b" && ${(t)WAYPOINT_BRANCH} != *readonly* ]]; then typeset -gx WAYPOINT_BRANCH=$__wp_name; fi
  __wp_b=$__wp_name
}

__wp_show() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn
  __wp_plain
  if [[ ${WAYPOINT_PROMPT-} != off && $1 == on && -n $PS1 && -n $__wp_b && ${(t)PS1} != *readonly* ]]; then PS1="%{%}[$__wp_b] %{%}$PS1"; fi
}

__wp_plain() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn extendedglob
  local -a match mbegin mend
  if [[ $PS1 == (#b)(*)%\{%\}\[[^]]#\]\ %\{%\}(*) && ${(t)PS1} != *readonly* ]]; then PS1=$match[1]$match[2]; fi
}

# Wrap the user's DEBUG trap, so that it does not run for commands of the hooks, as in bash.
__wp_calm() {
  builtin setopt localoptions nolocaltraps noerrexit noerrreturn noxtrace
  local __wp_t=
  local -a __wp_w
  local -i __wp_j
  if (( ${+functions[TRAPDEBUG]} )); then
    __wp_t=$functions[TRAPDEBUG]
    [[ $__wp_t == *'case ${funcstack[2]-}:'* ]] || functions[TRAPDEBUG]='case ${funcstack[2]-}:$ZSH_DEBUG_CMD in (__wp*|*:*__wp*) ;; (*) '$__wp_t$'\n;; esac'
    builtin return 0
  fi
  [[ -f $__wp_l && ! -L $__wp_l ]] && __wp_may_write && { builtin trap && builtin print -rN -- '' } 1<>"$__wp_l" && __wp_read -r -d '' __wp_t <"$__wp_l" || __wp_t=$(builtin trap)
  __wp_w=("${(z)__wp_t}") __wp_j=${__wp_w[(I)DEBUG]}
  (( __wp_j > 3 )) && [[ $__wp_w[__wp_j-3] == trap ]] || builtin return 0
  __wp_t=${(Q)__wp_w[__wp_j-1]}
  [[ -z $__wp_t || $__wp_t == 'case ${funcstack[1]-}:'* ]] || builtin trap -- 'case ${funcstack[1]-}:$ZSH_DEBUG_CMD in (__wp*|*:*__wp*) ;; (*) '$__wp_t$'\n;; esac' DEBUG
} >/dev/null 2>&1

__wp_pc() {
  local __wp_was=$? __wp_x=${options[xtrace]} __wp_p=${options[promptpercent]} # xtrace is for the request `state`: it is always off in a widget
  __wp_able
  local -a __wp_options
  __wp_options=("${(@kv)options[@]}")
  __wp_next
  __wp_calm
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn noxtrace
  __wp_xt=$__wp_x __wp_r=$__wp_was
  [[ -z $__wp_n ]] || __wp_fin $__wp_was PC
  __wp_hook
  __wp_branch
  __wp_next
  # A function does not see the positional parameters, so sched calls __wp_keep, right after the functions of precmd.
  __wp_opts="${(j: :)__wp_options} xtrace $__wp_x"
  if ! { (( ${+builtins[sched]} )) && builtin sched +00:00 '__wp_keep "$0" "$@"&&:' } 2>/dev/null; then __wp_keep; fi
  __wp_show $__wp_p
  if [[ -o zle ]]; then __wp_say "P;$$;$__wp_s;zsh"; else __wp_say "P;$$;$__wp_s;none"; fi
  builtin return $__wp_was
}

__wp_next() {
  typeset -g __wp_l=$__wp_d/last.$(( (__wp_seq + 1) % 2 ))
  [[ -f $__wp_l && -O $__wp_l && ! -L $__wp_l ]] || __wp_l=
}

# Write the shell's state at this prompt, as in bash. "$@": $0 and the positional parameters, if they are known.
__wp_keep() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn noxtrace
  local __wp_was=$__wp_r
  local -i __wp_t0=${(%):-%D{%s%3.}} __wp_t1
  __wp_args=("$@") __wp_lost=lost
  if [[ -n $__wp_l ]] && (( __wp_t0 >= __wp_rest )) && __wp_may_write; then
    __wp_seq+=1
    __wp_remember
    if { builtin print -rN -- '' && __wp_state $__wp_seq "$__wp_opts" && builtin print -rN -- e $__wp_seq '' '' } 2>/dev/null 1<>"$__wp_l"; then
      __wp_lost=
    else
      (( __wp_rest = __wp_t0 + 20000 ))
      __wp_empty
    fi
    __wp_t1=${(%):-%D{%s%3.}}
    (( __wp_t1 - __wp_t0 <= __wp_most )) || (( __wp_rest = __wp_t1 + 20 * (__wp_t1 - __wp_t0) ))
  elif [[ -n $__wp_l ]]; then
    __wp_empty
  fi
  __wp_tell
  builtin return $__wp_was
}

__wp_tell() {
  [[ $__wp_lost != $__wp_told ]] || builtin return 0
  __wp_told=$__wp_lost
  __wp_say "L;$__wp_s;$__wp_told"
  [[ -z $__wp_told ]] || builtin printf "waypoint: this shell's variables and functions cannot be written (full disk, ulimit -f): they may end with it\r\n" >"${__wp_tty:-/dev/tty}"
}

__wp_may_write() {
  builtin emulate -L zsh
  setopt extendedglob
  local __wp_limits=$(</proc/self/limits)
  [[ $__wp_limits != *$'\nMax file size '* || $__wp_limits == *$'\nMax file size'\ #(unlimited|[0-9](#c9,))\ * ]]
}

__wp_remember() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn noxtrace extendedhistory
  [[ $HISTCMD != $__wp_hn && $#HISTCMD -le 5 ]] || builtin return 0
  local SAVEHIST=$HISTSIZE
  __wp_hn=$HISTCMD
  if [[ $__wp_hs == hist.0 ]]; then __wp_hs=hist.1; else __wp_hs=hist.0; fi
  __wp_plain_file "$__wp_d/$__wp_hs" && builtin fc -W "$__wp_d/$__wp_hs" 2>/dev/null || __wp_hs=
  builtin return 0
}

# Keep the line that evaluates a command out of the history.
__wp_ah() {
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn noxtrace
  [[ $1 != ' { { '*'__wp&&:;}'* ]]
}

__wp_hook() {
  builtin emulate -L zsh
  (( ${precmd_functions[(I)__wp_pc]} )) || precmd_functions+=(__wp_pc)
  (( ${zshexit_functions[(I)__wp_left]} )) || zshexit_functions+=(__wp_left)
  (( ${zshaddhistory_functions[(I)__wp_ah]} )) || zshaddhistory_functions+=(__wp_ah)
}

__wp() {
  local __wp_was=$?
  __wp_branch
  __wp_plain
  if [[ -o xtrace ]]; then builtin set +x; __wp_c="set -x; $__wp_c"; fi
  [[ $__wp_op == tty ]] || __wp_quiet
  __wp_replaces
  __wp_say "S;$__wp_n;$__wp_k"
  __wp_wait S
  builtin return $__wp_was
}

__wp_z() {
  local __wp_was=$?
  __wp_able
  __wp_calm
  __wp_fin $__wp_was Z
  builtin return $__wp_was
}

__wp_check() {
  builtin unset 'functions[__wp_chk]'
  { functions[__wp_chk]=$__wp_c } 2>/dev/null
  if (( ! ${+functions[__wp_chk]} )); then
    typeset -g __wp_m="$( { functions[__wp_chk]=$__wp_c } 2>&1 )"
    __wp_m=${${__wp_m%%$'\n'*}/#__wp_check:/zsh:} # the syntax error; a second line would tell that the function cannot be made
    __wp_c='builtin print -r -- "$__wp_m"; (exit 2)'
  fi
  builtin unset 'functions[__wp_chk]'
}

# Write one record. If the name or the text has a NUL, both are escaped, and the kind is a capital letter.
__wp_record() {
  if [[ $2$4 == *$'\0'* ]]; then
    builtin print -rN -- "${(U)1}" "${${2//\\/\\\\}//$'\0'/\\0}" "$3" "${${4//\\/\\\\}//$'\0'/\\0}"
  else
    builtin print -rN -- "$@"
  fi
}

# Write the shell's state to stdout, as in bash. $1: the number of the state. $2: the user's options. `typeset -p` writes a newline in a
# value as \n, so its output has one line for each variable. Without printeightbit, it prints the same text for different bytes.
__wp_state() {
  local __wp_v __wp_t
  local -a __wp_fs __wp_rec=(builtin print -rN --)
  setopt printeightbit
  {
    builtin print -rN -- s "$1" zsh "$__wp_r" o '' '' "$2" || builtin return 1
    for __wp_v in "${(@)__wp_args}"; do __wp_record g '' '' "$__wp_v" || builtin return 1; done
    builtin print -rN -- h '' '' "$__wp_hs" || builtin return 1
    for __wp_v in "$PWD" "${(@)dirstack}"; do builtin print -rN -- d '' '' "${__wp_v%%$'\0'*}" || builtin return 1; done
    builtin print -rN -- m '' '' && builtin umask && builtin print -rN -- '' l '' '' && builtin ulimit -Sa && builtin print -rN -- '' || builtin return 1
    builtin print -rN -- v '' '' && builtin typeset -p && builtin print -rN -- '' p '' '' $#parameters "${(@kv)parameters}" || builtin return 1
    __wp_fs=("${(@kv)functions}")
    if [[ -n ${(M)__wp_fs:#*$'\0'*} ]]; then
      builtin print -rN -- F '' '' $#functions "${(@)${(@)__wp_fs//\\/\\\\}//$'\0'/\\0}" || builtin return 1
    else
      builtin print -rN -- f '' '' $#functions "${(@)__wp_fs}" || builtin return 1
    fi
    __wp_fs=("${(@kv)aliases}" "${(@kv)galiases}" "${(@kv)saliases}")
    [[ -z ${(M)__wp_fs:#*$'\0'*} ]] || __wp_rec=(__wp_record)
    for __wp_v __wp_t in "${(@kv)aliases}"; do $__wp_rec a "$__wp_v" '' "$__wp_t" || builtin return 1; done
    for __wp_v __wp_t in "${(@kv)galiases}"; do $__wp_rec a "$__wp_v" -g "$__wp_t" || builtin return 1; done
    for __wp_v __wp_t in "${(@kv)saliases}"; do $__wp_rec a "$__wp_v" -s "$__wp_t" || builtin return 1; done
    builtin print -rN -- t '' '' && builtin trap && builtin print -rN -- ''
  }
}

__wp_arm() {
  local __wp_was=$?
  __wp_able
  local -a __wp_options
  __wp_options=("${(@kv)options[@]}") # the user's options, before `emulate` changes them
  builtin emulate -L zsh
  builtin setopt noerrexit noerrreturn noxtrace
  {
    local __wp_word __wp_id __wp_nonce __wp_got
    __wp_get req || builtin return 0
    __wp_word=${__wp_got%% *} __wp_nonce=${__wp_got##* } __wp_id=${${__wp_got#* }%% *}
    __wp_branch
    case $__wp_word in
    exec|in|tty)
      [[ $__wp_id != "$__wp_done" ]] || builtin return 0 # a repeated request whose command has run
      if [[ $CONTEXT != start ]]; then __wp_say "B;$__wp_id;$__wp_nonce;at=2"; builtin return 0; fi
      __wp_hook
      __wp_op=$__wp_word __wp_n=$__wp_id __wp_k=$__wp_nonce
      __wp_c=
      ! __wp_file "cmd.$__wp_id" || __wp_read -r -d '' __wp_c <"$__wp_p" || :
      __wp_check
      __wp_say "A;$__wp_id;$__wp_nonce;$#BUFFER"
      builtin zle .push-line
      if [[ $__wp_word == tty ]]; then
        BUFFER=' { { __wp&&:;} 2>/dev/null;{ \builtin eval " $__wp_c";};} always { { __wp_z;} 2>/dev/null;}'
      else
        if [[ $__wp_word == in ]]; then __wp_i=$__wp_d/in.$__wp_id; else __wp_i=/dev/null; fi
        BUFFER=' { { { __wp&&:;} 2>/dev/null;\builtin eval " $__wp_c";} <"$__wp_i";} always { { __wp_z;} 2>/dev/null;}'
      fi
      builtin zle .accept-line
      ;;
    stat)
      local __wp_at=2
      [[ $CONTEXT != start ]] || __wp_at=1
      __wp_say "T;$__wp_id;$__wp_nonce;$__wp_was;$__wp_at;$__wp_n"
      ;;
    state)
      [[ $__wp_id != "$__wp_stated" ]] || builtin return 0 # served once, as in bash
      __wp_stated=$__wp_id
      if [[ $CONTEXT != (start|cont) ]]; then __wp_say "B;$__wp_id;$__wp_nonce;at=0"; builtin return 0; fi
      local __wp_f=$__wp_d/state.$__wp_id
      __wp_r=$__wp_was
      ! __wp_may_write || __wp_remember
      if [[ -f $__wp_f ]] && __wp_may_write && { __wp_state '' "${(j: :)__wp_options} xtrace $__wp_xt" && builtin print -rN -- e '' '' '' } >|"$__wp_f"; then __wp_say "K;$__wp_id;$__wp_nonce;ok"; else __wp_say "K;$__wp_id;$__wp_nonce;failed"; fi
      ;;
    esac
    builtin return 0
  } 2>/dev/null
}

[[ -z ${WAYPOINT_AGAIN-} ]] || __wp_loud

if [[ -n $__wp_s ]]; then
  __wp_bind
  __wp_branch
  __wp_hook
else
  __wp_pc() { : }
fi
