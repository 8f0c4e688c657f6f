"""Time stamps over heads of the log of heads (RFC 3161)."""
