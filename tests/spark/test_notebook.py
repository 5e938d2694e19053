"""The notebook runs from top to bottom, on real documents, and shows what it says."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "score_a_table.ipynb"


@pytest.mark.slow
def test_the_notebook_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYBREAK_DEMO", str(tmp_path / "demo"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("rows=3000", "rows=600")
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute(
        cwd=str(NOTEBOOK.parent), env={**os.environ}
    )
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    html = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert any("scored + 0 dead letters" in text for text in html)
    assert any("rows after two runs" in output.get("text", "") for output in outputs)
