"""What agents are offered, tried as they would."""
