"""Lists the runs of a job: ``./spark-submit.sh jobs/runs.py --config FILE``."""

import sys

from daybreak.cli import main

if __name__ == "__main__":
    sys.exit(main(["runs", *sys.argv[1:]]))
