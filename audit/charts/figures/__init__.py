"""Charts as data, made of counts."""
