"""The client with a scripted peer, and with the real daemon."""
