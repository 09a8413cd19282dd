"""Tests of the processes room: CRIU found, installed, understood, and what it refuses."""
