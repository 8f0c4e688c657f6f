"""Charts as SVG, as a table and as CSV. Pure."""
