"""The daemon's side of the protocol with the shell's hooks, the functions that Waypoint adds to the session's shell
(docs/protocol.md, section 3): marks on the terminal, files in the shared folder, and the state of the shell's prompt.
"""
