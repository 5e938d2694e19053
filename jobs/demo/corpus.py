"""Real text for the demo and the benchmarks: the docstrings of this Python and of its installed packages.

The source files are parsed and never imported, so nothing of theirs runs. All of it is deterministic for one
environment: which files are read, in which order, and which documents are kept are rules and not draws.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

RULE = 1  # of what is collected and how it is sampled; raise it when that changes
OVERSAMPLE = 3  # documents read for one that is kept: a sample has more packages in it than its files alone
BATCH = 200  # files
NOT_SOURCE = {"site-packages", "dist-packages", "__pycache__"}
Described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A file, and the name that it would be imported by."""

    module: str
    path: Path


class Doc(NamedTuple):
    doc_id: str
    module: str
    text: str


def docs(rows: int | None = None, *, sources: Sequence[Source] | None = None) -> list[Doc]:
    """`rows` documents in the order of their ids; all there are where `rows` is None or more than that."""
    files = installed_sources() if sources is None else sources
    if rows is None:
        return sorted(unique_ids(chain.from_iterable(collect(files))))
    enough = at_least(rows * OVERSAMPLE, collect(shuffled(files)))
    return sorted(sample(unique_ids(sorted(enough)), rows))


def shuffled(sources: Iterable[Source]) -> list[Source]:
    """In the order of a hash of the module name: every package has its part in any beginning of the list."""
    return sorted(sources, key=lambda source: hashlib.sha256(source.module.encode()).digest())


def at_least(rows: int, files: Iterable[list[Doc]]) -> Iterator[Doc]:
    """The documents of as many whole files as it takes: to parse all files takes minutes."""
    taken = 0
    for found in files:
        yield from found
        taken += len(found)
        if taken >= rows:
            return


def sample(found: Iterable[Doc], rows: int) -> list[Doc]:
    """`rows` documents at even steps through all of them by length, the shortest and the longest included.

    So the sample has the quantiles of the whole, whatever its size: a median of a paragraph and a long tail.
    """
    by_length = sorted(found, key=lambda doc: (len(doc.text), doc.doc_id))
    if rows >= len(by_length):
        return by_length
    if rows == 1:
        return [by_length[len(by_length) // 2]]
    step = (len(by_length) - 1) / (rows - 1)
    return [by_length[round(step * place)] for place in range(rows)]


def unique_ids(found: Iterable[Doc]) -> Iterator[Doc]:
    """Number what shares a name: a property's getter and setter, both branches of an `if`."""
    seen: Counter[str] = Counter()
    for doc in found:
        seen[doc.doc_id] += 1
        again = seen[doc.doc_id]
        yield doc if again == 1 else doc._replace(doc_id=f"{doc.doc_id}#{again}")


def collect(sources: Sequence[Source]) -> Iterator[list[Doc]]:
    """The documents of each file, parsed on all cores, in the order of the files."""
    with ProcessPoolExecutor() as pool:
        for start in range(0, len(sources), BATCH):
            yield from pool.map(docs_of, sources[start : start + BATCH], chunksize=BATCH // 10)


def docs_of(source: Source) -> list[Doc]:
    """The docstrings of one file; none where it is not Python of this version (templates, test data)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escapes
            tree = ast.parse(source.path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return []
    return list(_described(tree, source.module, ""))


def _described(node: Described, module: str, name: str) -> Iterator[Doc]:
    text = _text(node)
    if text:
        yield Doc(f"{module}:{name}" if name else module, module, text)
    for child in _definitions(node):
        yield from _described(child, module, f"{name}.{child.name}".lstrip("."))


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The nearest definitions below a node, through `if`, `try` and `with`, but not into expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _definitions(child)


def _text(node: Described) -> str:
    """The docstring as a person reads it. A lone surrogate, which no table holds, becomes a question mark."""
    text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
    return text.encode("utf-8", "replace").decode("utf-8")


def installed_sources() -> list[Source]:
    """Every source file of the standard library and of the installed packages, by module name."""
    paths = sysconfig.get_paths()
    roots = dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib"))
    return sorted(source for root in roots for source in sources_under(root))


def sources_under(root: Path) -> Iterator[Source]:
    for path in root.rglob("*.py"):
        below = path.relative_to(root)
        if not NOT_SOURCE.intersection(below.parts):
            yield Source(module_name(below), path)


def module_name(below: Path) -> str:
    """`json/decoder.py` is `json.decoder`, and `json/__init__.py` is `json`."""
    parts = below.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def fingerprint(sources: Iterable[Source], rows: int | None) -> str:
    """Changes when a package comes, goes or changes, or when the rule does; cheap, where parsing is not."""
    digest = hashlib.sha256(f"{RULE} {rows}".encode())
    for module, path in sources:
        digest.update(f"{module} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]
