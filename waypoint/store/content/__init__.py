"""The content-addressed store: its place, its keys, reading and adding objects, images, checks, and what is removed."""
