# zsh's hooks, read at the first prompt (see .zshenv). They do what ../hooks.bash does, and for the same reasons; the differences:
# - the widget itself puts the person's line aside (push-line, which brings it back at the next prompt) and accepts ours;
# - an `always` block runs on ^C too; precmd is the second net;
# - $CONTEXT tells a first line from a continued one;
# - text is parsed, without running any of it, by making a function of it.
# Everything that must not depend on the user's options runs in functions with `emulate -L zsh`.

typeset -g __wp_d=${WAYPOINT_RUN:-/run/waypoint} __wp_s= __wp_n= __wp_k= __wp_c= __wp_op= __wp_i= __wp_done=
unset WAYPOINT_RUN
IFS= read -r __wp_s <"$__wp_d/nonce" 2>/dev/null
typeset -ga __wp_old=()

__wp_say() {
  builtin printf '\e]7717;%s\a' "$1" >/dev/tty
}

__wp_wait() {
  emulate -L zsh
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

__wp_quiet() {
  emulate -L zsh
  local v w
  __wp_old=()
  for v in PAGER GIT_PAGER MANPAGER SYSTEMD_PAGER GIT_TERMINAL_PROMPT; do
    case ${(tP)v} in
    '') __wp_old+=("$v=-") ;;
    scalar) __wp_old+=("$v==${(P)v}") ;;
    scalar-export) __wp_old+=("$v=x=${(P)v}") ;;
    *) continue ;;
    esac
    if [[ $v == GIT_TERMINAL_PROMPT ]]; then w=0; else w=cat; fi
    typeset -gx "$v=$w"
  done
}

__wp_loud() {
  emulate -L zsh
  local o v w
  for o in "${(@)__wp_old}"; do
    v=${o%%=*} o=${o#*=}
    if [[ $v == GIT_TERMINAL_PROMPT ]]; then w=0; else w=cat; fi
    [[ ${(tP)v} == scalar-export && ${(P)v} == "$w" ]] || continue
    case $o in
    -) unset "$v" ;;
    x=*) typeset -gx "$v=${o#x=}" ;;
    *) typeset -g +x "$v=${o#=}" ;;
    esac
  done
  __wp_old=()
}

__wp_fin() {
  emulate -L zsh
  setopt noerrexit noerrreturn
  (( ! ZSH_SUBSHELL )) || return 0 # the rest of a line whose job was stopped: zsh leaves it to a fork of itself
  [[ $__wp_op == tty ]] || __wp_loud
  __wp_say "E;$__wp_n;$__wp_k;$1;$2"
  __wp_wait E
  __wp_done=$__wp_n __wp_n= __wp_c=
}

__wp_pc() {
  local r=$?
  emulate -L zsh
  setopt noerrexit noerrreturn noxtrace
  [[ -z $__wp_n ]] || __wp_fin $r PC
  __wp_hook
  if [[ -o zle ]]; then __wp_say "P;$$;$__wp_s;zsh"; else __wp_say "P;$$;$__wp_s;none"; fi
  return $r
}

# Our line stays out of the history.
__wp_ah() {
  emulate -L zsh
  setopt noerrexit noerrreturn noxtrace
  [[ $1 != ' { { '*'__wp&&:;}'* ]]
}

__wp_hook() {
  emulate -L zsh
  (( ${precmd_functions[(I)__wp_pc]} )) || precmd_functions+=(__wp_pc)
  (( ${zshaddhistory_functions[(I)__wp_ah]} )) || zshaddhistory_functions+=(__wp_ah)
}

__wp() {
  local r=$?
  if [[ -o xtrace ]]; then builtin set +x; __wp_c="set -x; $__wp_c"; fi
  [[ $__wp_op == tty ]] || __wp_quiet
  __wp_say "S;$__wp_n;$__wp_k"
  __wp_wait S
  return $r
}

__wp_z() {
  local r=$?
  __wp_fin $r Z
  return $r
}

__wp_check() {
  unset 'functions[__wp_chk]'
  { functions[__wp_chk]=$__wp_c } 2>/dev/null
  if (( ! ${+functions[__wp_chk]} )); then
    typeset -g __wp_m="$( { functions[__wp_chk]=$__wp_c } 2>&1 )"
    __wp_m=${${__wp_m%%$'\n'*}/#__wp_check:/zsh:} # the shell's word for it; not that it could not make a function of it
    __wp_c='builtin print -r -- "$__wp_m"; (exit 2)'
  fi
  unset 'functions[__wp_chk]'
}

__wp_arm() {
  local r=$?
  emulate -L zsh
  setopt noerrexit noerrreturn noxtrace
  {
    local op n k
    IFS=' ' builtin read -r op n k <"$__wp_d/req" || return 0
    case $op in
    exec|in|tty)
      [[ $n != "$__wp_done" ]] || return 0 # asked twice, and it has run
      if [[ $CONTEXT != start ]]; then __wp_say "B;$n;$k;at=2"; return 0; fi
      __wp_hook
      __wp_op=$op __wp_n=$n __wp_k=$k
      IFS= builtin read -r -d '' __wp_c <"$__wp_d/cmd.$n" || :
      __wp_check
      __wp_say "A;$n;$k;$#BUFFER"
      zle .push-line
      if [[ $op == tty ]]; then
        BUFFER=' { { __wp&&:;} 2>/dev/null;{ \builtin eval " $__wp_c";};} always { { __wp_z;} 2>/dev/null;}'
      else
        if [[ $op == in ]]; then __wp_i=$__wp_d/in.$n; else __wp_i=/dev/null; fi
        BUFFER=' { { { __wp&&:;} 2>/dev/null;\builtin eval " $__wp_c";} <"$__wp_i";} always { { __wp_z;} 2>/dev/null;}'
      fi
      zle .accept-line
      ;;
    stat) __wp_say "T;$n;$k;$r;1;$__wp_n" ;;
    esac
    return 0
  } 2>/dev/null
}

if [[ -n $__wp_s ]]; then
  zle -N __wp_arm
  () {
    local m
    for m in emacs viins vicmd isearch; do bindkey -M $m '\e[7717~' __wp_arm; done
  }
  __wp_hook
else
  __wp_pc() { : }
fi
