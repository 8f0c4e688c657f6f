"""Progress callback of long commands. One type for all rooms, so that the command line can show each of them alike."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is counted, how many are done, how many there are
