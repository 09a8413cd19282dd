"""Commands about the disk: what holds how much of it, what is given back, whether it is whole."""
