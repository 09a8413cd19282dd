"""Reading upper directories as changes: what differs from the base, and between two of them."""
