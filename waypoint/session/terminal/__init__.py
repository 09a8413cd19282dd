"""The daemon's end of a session's terminal: read into the ring, typed into, watched by any number of viewers."""
