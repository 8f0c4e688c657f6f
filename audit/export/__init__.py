"""A stream of sealed rows to other systems, each once and in order, through any kill.

following      the loop; start with this one
sealed_rows    reads the rows of sealed leaves, from the database or the archive
position       what was delivered so far (pure but for its file)
formats        JSON lines, CSV, OCSF (pure)
files          a file, or standard output
"""
