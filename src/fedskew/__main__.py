"""``python -m fedskew`` is the command line."""

from fedskew.cli import main

main()
