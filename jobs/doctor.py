"""`daybreak doctor` on Spark: ./spark-submit.sh jobs/doctor.py [--config FILE]"""

from __future__ import annotations

import sys

from daybreak.cli import main

if __name__ == "__main__":
    sys.exit(main(["doctor", *sys.argv[1:]]))
