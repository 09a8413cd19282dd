"""Tests of shellwrap: the scripts and the terminal code around a session's shell."""
