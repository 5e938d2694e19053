"""The demo's documents: the same ones each time, each with its own name, and as uneven as real text is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[2] / "jobs/demo/corpus.py"
spec = importlib.util.spec_from_file_location("demo_corpus", MODULE)
corpus = importlib.util.module_from_spec(spec)
sys.modules["demo_corpus"] = corpus  # the worker processes look it up by this name
spec.loader.exec_module(corpus)


@pytest.fixture(scope="module")
def parsed():
    """Real text, parsed in this process: 250 files of the standard library."""
    sources = corpus.shuffled(corpus.sources_under(Path(sysconfig.get_path("stdlib"))))[:250]
    return list(corpus.unique_ids(doc for source in sources for doc in corpus.docs_of(source)))


def source(folder, text, name="shapes.py"):
    (folder / name).write_text(text)
    return corpus.Source(name.removesuffix(".py"), folder / name)


def test_real_text_has_a_long_tail(parsed):
    lengths = sorted(len(doc.text) for doc in parsed)
    median, tail = lengths[len(lengths) // 2], lengths[len(lengths) * 99 // 100]
    assert len(lengths) > 500
    assert 50 < median < 300
    assert tail > 8 * median


def test_ids_are_unique_and_texts_are_not_empty(parsed):
    assert len({doc.doc_id for doc in parsed}) == len(parsed)
    assert all(doc.text.strip() for doc in parsed)


def test_a_sample_keeps_the_quantiles_and_both_ends(parsed):
    whole = sorted(len(doc.text) for doc in parsed)
    some = sorted(len(doc.text) for doc in corpus.sample(parsed, 101))
    assert len(some) == 101
    assert (some[0], some[-1]) == (whole[0], whole[-1])
    assert some[50] == pytest.approx(whole[len(whole) // 2], rel=0.05)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (2, 2), (7, 7), (10_000_000, None)])
def test_a_sample_has_the_rows_asked_for_or_all_each_once(parsed, asked, given):
    some = corpus.sample(parsed, asked)
    assert len(some) == (given or len(parsed))
    assert len(set(some)) == len(some)


def test_a_sample_does_not_depend_on_the_order_it_is_given(parsed):
    assert corpus.sample(parsed, 50) == corpus.sample(parsed[::-1], 50)


def test_the_same_documents_whatever_the_hash_seed_and_the_processes():
    program = (
        "import sys, hashlib, json, pathlib; sys.path.insert(0, sys.argv[1]); import corpus;"
        "sources = sorted(corpus.sources_under(pathlib.Path(json.__file__).parents[1] / 'email'));"
        "docs = corpus.docs(60, sources=sources);"
        "print(len(docs), hashlib.sha256(repr(docs).encode()).hexdigest(), corpus.fingerprint(sources, 60))"
    )

    def out(seed):
        command = [sys.executable, "-c", program, str(MODULE.parent)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert out("1") == out("2")
    assert out("1").startswith("60 ")


def test_names_come_from_the_source_and_nothing_of_it_runs(tmp_path):
    text = '''"""Shapes."""
raise SystemExit("imported")

class Circle:
    """Round."""

    @property
    def area(self):
        """Of the disc."""

    @area.setter
    def area(self, value):
        """Backwards."""

    def bare(self): ...

if True:
    async def draw():
        """On paper."""
        def inner():
            """Line by line.

            To the end:
                indented
            """
'''
    found = list(corpus.unique_ids(corpus.docs_of(source(tmp_path, text))))
    assert [(doc.doc_id, doc.text) for doc in found] == [
        ("shapes", "Shapes."),
        ("shapes:Circle", "Round."),
        ("shapes:Circle.area", "Of the disc."),
        ("shapes:Circle.area#2", "Backwards."),
        ("shapes:draw", "On paper."),
        ("shapes:draw.inner", "Line by line.\n\nTo the end:\n    indented"),
    ]
    assert {doc.module for doc in found} == {"shapes"}


@pytest.mark.parametrize("text", ["def broken(:", "\x00", '"""   """', "", '"not', "x = 1"])
def test_a_file_without_docstrings_gives_none(tmp_path, text):
    assert corpus.docs_of(source(tmp_path, text)) == []


def test_a_lone_surrogate_does_not_reach_the_table(tmp_path):
    (doc,) = corpus.docs_of(source(tmp_path, r'"""half \ud800 a pair"""'))
    assert doc.text == "half ? a pair"


@pytest.mark.parametrize(
    ("path", "module"),
    [("json/decoder.py", "json.decoder"), ("json/__init__.py", "json"), ("this.py", "this")],
)
def test_module_names(path, module):
    assert corpus.module_name(Path(path)) == module


def test_the_fingerprint_moves_with_a_file_and_with_the_rows(tmp_path):
    before = corpus.fingerprint([source(tmp_path, '"""One."""')], 10)
    assert corpus.fingerprint([source(tmp_path, '"""One."""')], 10) == before
    assert corpus.fingerprint([source(tmp_path, '"""One."""')], 11) != before
    assert corpus.fingerprint([source(tmp_path, '"""One more."""')], 10) != before
