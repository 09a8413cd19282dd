"""The client against a peer that does what the test tells it, and against the real daemon."""
