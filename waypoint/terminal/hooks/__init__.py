"""The daemon's side of the protocol with the shell's hooks (docs/protocol.md, section 3): marks on the terminal, files
in the shared folder, and the state of the shell's prompt.
"""
