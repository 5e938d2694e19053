"""The documents say what the code does: no dead link, no command, key or exit code that README does not name."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from daybreak import cli, errors
from daybreak.config import JobConfig

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text()
DOCUMENTS = [*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_no_link_is_dead(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    dead = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not dead


@pytest.mark.parametrize("script", ["spark-submit.sh", "Makefile", ".ci/run"])
def test_no_file_that_a_script_names_is_missing(script: str) -> None:
    named = re.findall(
        r"\b(?:docs|conf|jobs|requirements)/[\w./-]+\.(?:md|py|yaml|conf|txt)\b", (REPO / script).read_text()
    )
    assert not [name for name in named if "NAME" not in name and not (REPO / name).exists()]


def test_every_command_is_in_the_readme() -> None:
    [commands] = [one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction)]
    named = {name for name in commands.choices if f"jobs/{name}.py" in README or f"daybreak {name}" in README}
    assert named | {"schema"} == set(commands.choices)
    assert "job.schema.json" in README


def keys(section: type[BaseModel] = JobConfig, prefix: str = "") -> list[str]:
    """The job file's keys, `input.table` and so on."""
    found = []
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        found += keys(inner[0], f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return found


@pytest.mark.parametrize("key", keys())
def test_every_key_of_the_job_file_is_in_the_readme(key: str) -> None:
    section, _, last = key.rpartition(".")
    table = README.split("### The job file")[1].split("## Develop it")[0]
    assert f"`{key}`" in table or (f"`{section}." in table and f".{last}`" in table)


def test_every_exit_code_is_in_the_readme() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DaybreakError)
    ]
    assert {kind.exit_code for kind in kinds} == {1, 2, 3, 4, 5}
    assert all(f"\n| {kind.exit_code} | " in README for kind in kinds)
