"""The SDK over the control socket. Standard library only; it starts fast."""
