"""The way out of sessions on a private network: a router of the home's own, and what leads to it."""
