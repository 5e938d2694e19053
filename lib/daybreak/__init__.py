"""Daybreak: score a bounded table with a registered model on Spark, every row once, by daybreak.

>>> from daybreak import score
>>> summary = score("conf/jobs/demo.yaml")  # doctest: +SKIP
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from daybreak import score as _score

__version__ = "0.1.0"
__all__ = ["JobConfig", "Summary", "score"]

_HOMES = {"JobConfig": "daybreak.config", "Summary": "daybreak.ops.report"}


class _Score(ModuleType):
    """``daybreak.score`` is the package of the scoring core and, when it is called, :func:`daybreak.run.score`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("daybreak.run").score(*args, **kwargs)


sys.modules[_score.__name__].__class__ = _Score

if TYPE_CHECKING:
    from daybreak.config import JobConfig
    from daybreak.ops.report import Summary
    from daybreak.run import score
else:
    score = _score


def __getattr__(name: str) -> Any:
    """Load the public names when they are used: importing the package starts neither Spark nor torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'daybreak' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
