"""What a home has in its store: captures become images there, and are looked after."""
