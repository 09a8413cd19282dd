"""The C library, ioctl, seccomp, running programs, facts about the machine. The other packages of `linux` use this."""
