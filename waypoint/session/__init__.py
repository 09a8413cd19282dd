"""Life of a live session: plan, launch, terminal, exec, adopt, end."""
