"""`python -m colonnade`: the command line."""

from colonnade.cli.main import main

main()
