"""Tests of the commands, run as subprocesses and on pseudo-terminals."""
