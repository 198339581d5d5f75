"""`python -m kit` is `kit`."""

from kit.cli import main

main()
