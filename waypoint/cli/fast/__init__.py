"""The verbs of the fast path. client/wire.py says what may be imported here."""
