"""Servers that speak a vendor's interface over real HTTP, for the vendor's own SDK."""
