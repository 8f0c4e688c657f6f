"""Counts of sealed rows by day, with what proves them."""
