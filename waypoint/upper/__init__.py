"""The pool: it holds the sessions' upper directories (overlayfs). Two drivers behind one contract, btrfs and copy."""
