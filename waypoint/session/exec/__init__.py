"""Command lines of clients in the session's own shell: asked for by marks, seen through by whichever daemon lives."""
