"""Time stamp authorities: a real one, and a forger that can sign anything."""
