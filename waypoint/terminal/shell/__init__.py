"""A shell's state as data: a shell writes its state down for a capture, and a shell of the same kind can take it on."""
