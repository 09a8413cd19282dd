"""Rules of the repository itself: they read its files and run none of them."""
