"""The parts around a shell on a terminal: hooks, mark parser, scrollback ring, proxy. Standard library only."""
