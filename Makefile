# Everything runs in .venv, which is made on the first call and again when pyproject.toml changes.

PYTHON ?= python3
ARGS ?=
VENV := .venv
# A test run starts hundreds of processes: where this is set, as in many images, each compiles the sources anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo demo-view test check bench bench-spark clean

help:
	@echo "make TARGET [ARGS=\"...\"] [PYTHON=python3]: each target first makes .venv with all it needs, if it must"
	@echo
	@echo "make demo     Kafka, a failing service and the sidecar at work, then checked; needs Java 17, takes 1 minute"
	@echo "              the real ladder, 4 h 45 min:             make demo ARGS=\"--ladder rocketmq\""
	@echo "              batch, ordered, pull or relay:           make demo ARGS=\"--mode ordered\""
	@echo "make demo-view  the same, with Spark's view of the group filling and emptying beside it"
	@echo "make test     every test, on an embedded Kafka          make test ARGS=tests/unit"
	@echo "make check    ruff, mypy --strict and the import contracts; changes nothing"
	@echo "make bench    throughput, lateness and memory, as ratios to a bare copy loop"
	@echo "make bench-spark  the view job: CPU an event, events/s and memory at 100 k and 1 M records; freshness"
	@echo "make image    the sidecar's image (docker or podman); image-spark: the view job's; image-test: built and tried"
	@echo "make sbom     the bill of materials of the image's environment; make lock: its versions, pinned by hash"
	@echo "make clean    remove .venv, caches and build results"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(READY)
	@$(BIN)/reconsume demo $(ARGS)

demo-view: $(READY)
	@$(BIN)/reconsume demo --view $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 4 $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

bench-spark: $(READY)
	$(BIN)/python -m benchmarks.spark_bench $(ARGS)
	$(BIN)/python -m benchmarks.spark_freshness $(ARGS)

include deploy/image/image.mk

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
