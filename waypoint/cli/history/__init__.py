"""The verbs on captures, names and operations, one file each."""
