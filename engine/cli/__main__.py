"""`python -m engine.cli` is the console script."""

from engine.cli.main import main

main()
