"""What wraps a shell on a terminal."""
