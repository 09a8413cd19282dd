"""The daemon: HTTP server, routes, supervisor, the trials of doctor."""
