"""What the suite prints at its end: where its time went, before pytest's own last line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def test_the_share_of_each_file_stands_before_the_last_line(tmp_path: Path) -> None:
    shutil.copy2(CONFTEST, tmp_path)
    slow = "import time\nimport pytest\n\n@pytest.fixture\ndef wait():\n    time.sleep(0.3)\n\ndef test(wait): pass\n"
    (tmp_path / "test_slow.py").write_text(slow)
    (tmp_path / "test_quick.py").write_text("def test(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "2", str(tmp_path)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    *_, slowest, quick, total, last = done.stdout.splitlines()
    assert re.fullmatch(r" +0\.\d s +\d+\.\d %  test_slow\.py", slowest)
    assert quick.endswith("test_quick.py")
    assert re.fullmatch(r" +0\.\d s 100\.0 %  in 2 files, over all processes", total)
    assert "2 passed" in last
