"""The calls of a home, by what they are about: what the properties of Client give."""
