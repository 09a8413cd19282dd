"""Tests of the daemon's HTTP server, streams and supervision, with real sockets and processes."""
