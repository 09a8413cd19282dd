"""The daemon's end of a session's terminal. The daemon reads the terminal's output into a ring (a file with the most
recent output), shows the output to any number of viewers, and types input.
"""
