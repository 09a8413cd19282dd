"""Outbound network of sessions on a private network: one router for each home."""
