"""Scores the table of a job file: ``./spark-submit.sh jobs/score.py --config FILE [--set a.b=c]...``."""

import sys

from daybreak.cli import main

if __name__ == "__main__":
    sys.exit(main(["score", *sys.argv[1:]]))
