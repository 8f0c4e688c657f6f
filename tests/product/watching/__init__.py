"""What operators see of a running engine."""
