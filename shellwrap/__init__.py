"""What wraps a shell on a terminal: hooks, mark parser, scrollback ring, terminal proxy. Standard library only."""
