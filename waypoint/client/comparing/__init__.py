"""What sessions have changed, asked of the daemon."""
