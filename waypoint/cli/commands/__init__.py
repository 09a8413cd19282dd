"""The verbs on sessions and on this machine that are not on the fast path, one file each."""
