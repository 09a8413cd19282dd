"""Captures of sessions: taking, holding, restoring, sealing and sweeping them."""
