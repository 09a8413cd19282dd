"""Tests of the daemon shell: HTTP, streams, supervision, on real sockets and processes."""
