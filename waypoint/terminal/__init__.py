"""The daemon's end of a session's terminal: its output is read into the ring and shown to any number of viewers, and
input is typed into it.
"""
