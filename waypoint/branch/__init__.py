"""Names: which capture a branch continues from."""
