# The first file that zsh reads, as the daemon has set ZDOTDIR to this folder. It sets ZDOTDIR back to the user's value, so that zsh and all
# other programs find the user's files, and arranges that the hooks (.zshrc in this folder) are read at the first prompt, after those files.

typeset -g __wp_here=$ZDOTDIR
if [[ -n ${WAYPOINT_ZDOTDIR-} ]]; then
  ZDOTDIR=$WAYPOINT_ZDOTDIR
else
  unset ZDOTDIR
fi
unset WAYPOINT_ZDOTDIR
# The hooks of bash, for the case that a bash had replaced the shell before.
[[ ${PROMPT_COMMAND-} != '[[ $$ != '*' ]] || . '*/hooks.bash ]] || unset PROMPT_COMMAND
[[ ! -r ${ZDOTDIR:-$HOME}/.zshenv ]] || source "${ZDOTDIR:-$HOME}/.zshenv"

# WAYPOINT_AGAIN: of the shell that a command has replaced by this one, not by the parent of this one.
if [[ -o interactive && ${WAYPOINT_AGAIN:-$$:} == $$:* ]]; then
  __wp_boot() {
    emulate -L zsh
    setopt noaliases noerrexit noerrreturn noxtrace
    __wp_boot() { : } # runs once, although both precmd_functions and sched may call it
    precmd_functions=(${precmd_functions:#__wp_boot})
    source "$__wp_here/.zshrc"
    unset __wp_here WAYPOINT_AGAIN
    __wp_pc
  }
  precmd_functions+=(__wp_boot)
  # If the user's files replace precmd_functions, sched calls __wp_boot: zsh runs due events before each prompt, too.
  zmodload -F zsh/sched b:sched 2>/dev/null && sched +00:00 __wp_boot
else
  unset __wp_here WAYPOINT_AGAIN
fi
