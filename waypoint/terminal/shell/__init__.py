"""A shell's state as data: a shell writes its variables, functions and options into a file for a capture, and another
shell of the same kind can be given this state.
"""
