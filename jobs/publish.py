"""Publishes a run whose shards are staged: ``./spark-submit.sh jobs/publish.py --config FILE``."""

import sys

from daybreak.cli import main

if __name__ == "__main__":
    sys.exit(main(["publish", *sys.argv[1:]]))
