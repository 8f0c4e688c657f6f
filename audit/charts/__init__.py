"""Charts of the log: counts by day, kept as rollups that name the sealed rows they were made from, and their drawing as SVG."""
