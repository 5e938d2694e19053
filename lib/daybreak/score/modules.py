"""The Python modules that a model brings along (``code_paths``): a process that goes on to another model keeps none.

MLflow puts a model's code in front of ``sys.path`` and leaves it there, and Python keeps what it has imported. So a
worker that Spark uses again would run the next model on the last one's modules.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["of_model", "search_path"]

logger = logging.getLogger(__name__)


@dataclass
class _Brought:
    """What the model of this process has brought: its folder, the places it added to ``sys.path``, and the modules of
    the same names that stood there before."""

    folder: str
    digest: str
    added: list[str] = field(default_factory=list)
    shelved: dict[str, ModuleType] = field(default_factory=dict)

    def holds(self, path: Any) -> bool:
        """Whether a path lies in the model's folder."""
        roots = {self.folder, os.path.realpath(self.folder)}
        return isinstance(path, str) and any(path == root or path.startswith(root + os.sep) for root in roots)


_current: _Brought | None = None
_base: frozenset[str] | None = None


@contextmanager
def of_model(folder: Path, digest: str) -> Iterator[None]:
    """Load a model in here: its modules are its own, those of the last model are gone. A model that is loaded again,
    in another precision say, keeps its modules: some can be imported only once a process."""
    global _current, _base
    if _base is None:
        importlib.import_module("mlflow.pyfunc")
        _base = frozenset(sys.modules)
        _compile_from_text()
    if _current is None or (_current.folder, _current.digest) != (str(folder), digest):
        _leave()
        _current = _Brought(str(folder), digest)
        _shelve(_current, folder)
    before = set(sys.path)
    try:
        yield
    finally:
        _current.added += [place for place in dict.fromkeys(sys.path) if place not in before]


def search_path() -> list[str]:
    """``sys.path`` without what the model of this process has added, for a child that loads a model of its own."""
    brought = _current
    return [one for one in sys.path if one and not (brought and (one in brought.added or brought.holds(one)))]


def _leave() -> None:
    """Take the last model's modules and places out of the process, also those that it imported while it scored."""
    global _current
    if _current is None:
        return
    sys.path[:] = [one for one in sys.path if one not in _current.added and not _current.holds(one)]
    for name, module in list(sys.modules.items()):
        if _is_of(module, _current):
            _drop(name)
    for place in [place for place in sys.path_importer_cache if _current.holds(place)]:
        del sys.path_importer_cache[place]
    importlib.invalidate_caches()
    for name, module in _current.shelved.items():
        sys.modules.setdefault(name, module)
    _current = None


def _is_of(module: Any, brought: _Brought) -> bool:
    """By its file; a namespace package, which has none, by its places if all are the model's."""
    known = getattr(module, "__dict__", {})  # an attribute may be made on demand, and import something
    if known.get("__file__"):
        return brought.holds(known["__file__"])
    try:
        places = list(known.get("__path__") or [])
    except Exception:
        return False
    return bool(places) and all(brought.holds(place) for place in places)


def _drop(name: str) -> None:
    module = sys.modules.pop(name)
    parent, _, child = name.rpartition(".")
    beside = getattr(sys.modules.get(parent), "__dict__", {})
    if beside.get(child) is module:
        del beside[child]


def _shelve(brought: _Brought, folder: Path) -> None:
    """Set aside modules of the names that the model brings and that an earlier model imported from elsewhere. What the
    process itself had before its first model stays, as it does where MLflow loads the model alone: that is told."""
    assert _base is not None
    for name in sorted(_names(folder)):
        found = sys.modules.get(name)
        if found is None or brought.holds(getattr(found, "__dict__", {}).get("__file__")):
            continue
        if name in _base:
            logger.warning("the model's own module %s is not used: this process had one of that name before", name)
            continue
        for known in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            brought.shelved[known] = sys.modules.pop(known)


def _names(folder: Path) -> set[str]:
    """The names that can be imported from the code that was logged with a model."""
    from mlflow.models import Model

    codes = {conf.get("code") for conf in Model.load(str(folder)).flavors.values() if isinstance(conf, dict)}
    found = [entry for code in codes if code and (folder / code).is_dir() for entry in (folder / code).iterdir()]
    names = (entry.name if entry.is_dir() else inspect.getmodulename(entry.name) for entry in found)
    return {name for name in names if name and name.isidentifier()}


def _compile_from_text() -> None:
    """Read no compiled module from a model's folder, and write none there: Python takes it for that of a text of the
    same size and second, which a replaced file may have."""
    stats = SourceFileLoader.path_stats

    def path_stats(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
        if _current is not None and _current.holds(path):
            raise OSError("a model's modules are compiled from their text")
        return stats(self, path)

    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]
