"""Tests of the client, with a scripted daemon and with the real daemon."""
