# zsh reads this first, because ZDOTDIR points here. It makes ZDOTDIR what the user has it, so that zsh itself finds all of the user's files
# (and everything that looks at ZDOTDIR is right), and sees to it that our hooks are read after them, at the first prompt.

typeset -g __wp_here=$ZDOTDIR
if (( ${+WAYPOINT_ZDOTDIR} )); then
  ZDOTDIR=$WAYPOINT_ZDOTDIR
  unset WAYPOINT_ZDOTDIR
else
  unset ZDOTDIR
fi
[[ ! -r ${ZDOTDIR:-$HOME}/.zshenv ]] || source "${ZDOTDIR:-$HOME}/.zshenv"

if [[ -o interactive ]]; then
  __wp_boot() {
    emulate -L zsh
    setopt noaliases noerrexit noerrreturn noxtrace
    __wp_boot() { : } # once is enough, but both of those below may call it
    precmd_functions=(${precmd_functions:#__wp_boot})
    source "$__wp_here/.zshrc"
    unset __wp_here
    __wp_pc
  }
  precmd_functions+=(__wp_boot)
  # Should the user's files set precmd_functions anew: an event that is due is looked at before each prompt too.
  zmodload -F zsh/sched b:sched 2>/dev/null && sched +00:00 __wp_boot
else
  unset __wp_here
fi
