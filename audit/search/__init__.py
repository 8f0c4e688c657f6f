"""Finds records, and reads one with all that belongs to it."""
