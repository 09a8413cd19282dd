"""The C library, ioctl, running programs, facts about the machine: the other rooms of `linux` are built on these."""
