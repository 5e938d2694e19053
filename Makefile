# `make help` lists what there is. Everything runs in .venv, which `make venv` builds from the locked requirements.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
LOCK := requirements/constraints.txt
STAMP := $(VENV)/.installed
BENCH := .venv-bench
TESTS := $(wildcard $(addprefix tests/,cluster browser spark unit))  # the longest first
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-churn test test-unit fuzz lint format bench bench-score bench-resume bench-growth bench-stragglers faults timeline lock wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## builds .venv (Python 3.11) from requirements/constraints.txt; nothing to do while that is unchanged

# Rebuilt when the lock or setup.py changes. uv comes from PyPI by pip, in the version that the lock names.
define install
	@python=$$(command -v $(PYTHON) || command -v python3) || { echo "no $(PYTHON) and no python3 on PATH: install Python 3.11" >&2; exit 2; }; \
	"$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$$python is not Python 3.11: make venv PYTHON=/path/to/python3.11" >&2; exit 2; }; \
	[ -x $(@D)/bin/python ] || "$$python" -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet "$$(grep -E '^uv==' $<)"
	$(@D)/bin/python -m uv pip install --quiet --python $(@D)/bin/python --requirement $<
	$(@D)/bin/python -m uv pip install --quiet --python $(@D)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@
endef

$(STAMP): $(LOCK) setup.py
	$(install)

$(BENCH)/.installed: requirements/bench.txt setup.py
	$(install)

demo: venv ## embeds 3,000 real documents with MiniLM and answers a search from the table
	./spark-submit.sh --env local jobs/prepare_demo.py docs
	./spark-submit.sh --env local jobs/score.py --config conf/jobs/demo.yaml
	./spark-submit.sh --env local jobs/search_demo.py

demo-churn: venv ## scores 7,043 real customers, twice, and shows that nothing doubles
	./spark-submit.sh --env local jobs/prepare_demo.py churn
	./spark-submit.sh --env local jobs/score.py --config conf/jobs/churn.yaml
	./spark-submit.sh --env local jobs/score.py --config conf/jobs/churn.yaml
	./spark-submit.sh --env local jobs/count_demo.py

test: venv ## every test but the benchmarks and the nights; the last line is pytest's
	@$(PY) -m pytest -m "not night" --numprocesses 2 --no-loadscope-reorder $(TESTS)

test-unit: venv ## the tests that need no JVM, in seconds
	@$(PY) -m pytest tests/unit

fuzz: venv ## random tables, models and cuts against a reference; EXAMPLES=n, 2000 unless said
	@EXAMPLES=$(or $(EXAMPLES),2000) $(PY) -m pytest tests/unit/score/test_fuzz.py

lint: venv ## ruff (rules and format) and mypy, strict on lib/
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

format: venv ## mends what ruff can mend
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

bench: $(BENCH)/.installed ## the peers on the same rows, on demand (tests/benchmarks), in an environment of their own
	$(BENCH)/bin/python tests/benchmarks/run.py $(ARGS)

bench-score: venv ## the scoring core alone, no Spark and no JVM, on whatever device is here, in minutes
	$(PY) tests/benchmarks/score_core.py

bench-resume: venv ## a resume with 9,990 of 10,000 shards staged: submit to first forward pass
	$(PY) tests/benchmarks/resume.py

bench-growth: $(BENCH)/.installed ## time and memory over 0.1, 1 and 10 million light rows
	$(BENCH)/bin/python tests/benchmarks/growth.py

bench-stragglers: venv ## one block of very long documents, cut by file and by cost
	$(PY) tests/benchmarks/stragglers.py

faults: venv ## the faults that take minutes, then kills at random moments over whole runs: SEED=1 RUNS=10
	$(PY) -m pytest -m night tests/cluster
	PYTHONPATH=tests/spark $(PY) tests/cluster/campaign.py --seed $(or $(SEED),1) --runs $(or $(RUNS),10)

timeline: venv ## docs/dynamic-allocation.png, from a run on a cluster of this machine
	DAYBREAK_TIMELINE=docs/dynamic-allocation.png $(PY) -m pytest tests/cluster/test_cluster.py

lock: venv ## the two lists in requirements/ from their .in; UPGRADE=1 takes the newest versions
	$(PY) -m uv pip compile --quiet --no-header --python-version 3.11 $(if $(UPGRADE),--upgrade) --output-file $(LOCK) requirements/dev.in
	$(PY) -m uv pip compile --quiet --no-header --python-version 3.11 --constraint $(LOCK) --output-file requirements/bench.txt requirements/bench.in

wheel: venv ## dist/daybreak-*.whl
	rm -rf build/lib build/bdist.*
	$(PY) -m build --wheel --no-isolation

clean: ## removes what was built: build/, dist/, caches; not .venv
	rm -rf build dist lib/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find lib jobs tests -name __pycache__ -type d -prune -exec rm -rf {} +
