"""The verbs of the fast path, one file each. client/wire.py says what may be imported here."""
