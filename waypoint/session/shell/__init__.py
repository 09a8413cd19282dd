"""A shell's state as data: asking the shell for it, and giving it back to one."""
