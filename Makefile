# Everything runs in .venv, which is made on the first call and again when pyproject.toml changes.

PYTHON ?= python3
ARGS ?=
VENV := .venv
# A test run starts hundreds of processes: where this is set, as in many images, each compiles the sources anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
PAGES := $(VENV)/.pages
GAUGES := $(VENV)/.gauges
# As pyproject.toml has it.
UV := 'uv>=0.9,<1'
# uv shows what it fetches, and how large it is. Settings of pip, such as a mirror, are unknown to it: then pip goes on,
# of a version that knows --group: Python 3.11 to 3.13 come with an older one.
install = $(BIN)/uv pip install --python $(BIN)/python $(1) || \
	{ echo "uv cannot install this, pip tries" >&2; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1' && $(BIN)/python -m pip install $(1); }

.DEFAULT_GOAL := help
.PHONY: help demo demo-view test test-all soak-sim compat check docs reference charts bench bench-spark bench-everyday bench-peers clean packet-loss soak soak-view soak-spark fuzz coverage release

help:
	@echo "make TARGET [ARGS=\"...\"] [PYTHON=python3]: each target first makes .venv with all it needs, if it must"
	@echo
	@echo "make demo     Kafka, a failing service and the sidecar at work, then checked; needs Java 17, takes 1 minute"
	@echo "              the real ladder, 4 h 45 min:             make demo ARGS=\"--ladder rocketmq\""
	@echo "              batch, ordered, pull or relay:           make demo ARGS=\"--mode ordered\""
	@echo "make demo-view  the same, with Spark's view of the group filling and emptying beside it"
	@echo "make test     all that a change can break, on embedded Kafka; 11 to 15 minutes on two cores, 5 GB of memory"
	@echo "              some of it:                              make test ARGS=tests/unit"
	@echo "make test-all  the same and what takes long: every kill point, three nodes, whole Spark jobs; 20 minutes"
	@echo "make soak-sim [EXAMPLES=20000]  random stories of groups on virtual time, over two processes; half an hour"
	@echo "make compat   the main job, kills, rebalances and redrives on each Kafka and group protocol, and the view's"
	@echo "              job on older and newer Spark; 45 minutes.  make compat COMPAT_RUNS=3.9:classic SPARK_RUNS="
	@echo "make packet-loss  transactions whose ends are lost on the way, on Kafka 3.9 and 4.3, 20 minutes"
	@echo "make soak     three nodes and three sidecars under a schedule of faults, 30 minutes, then checked: kills, pauses,"
	@echo "              lost packets, roll-outs, cut logs, deleted topics, ...  make soak MINUTES=5 SEED=7 ARGS=\"--only pod-kill,node-kill\""
	@echo "make soak-spark [ARGS=\"--kills 200 --seed 7\"]  a Spark consumer whose workers and driver are killed; each attempt counts once"
	@echo "make soak-view  Spark's view of groups that come and go, while its job is killed, 20 minutes; judged at each rest"
	@echo "make fuzz [MINUTES=5]  parsers of strangers' bytes, fed mutations; what breaks one is kept in tests/fuzz/corpus"
	@echo "make coverage  what make test runs through of the core, the client of Kafka and the deliveries; 10 minutes"
	@echo "make check    ruff, mypy (strict; of tests: what they call) and the import contracts; changes nothing"
	@echo "make docs     the documentation as a site in build/site; a page without a place or a link without a target fails"
	@echo "make reference  the page of the command line, docs/reference.md, from the commands"
	@echo "make bench    throughput, lateness and memory, as ratios to a bare copy loop"
	@echo "make bench-everyday  CPU by thread and latency at 0 to 5 000 records/s, beside a bare consumer; 6 minutes"
	@echo "make bench-peers  ours beside what else a user could pick, which is fetched first; an hour"
	@echo "make bench-spark  the view job: CPU an event, events/s and memory at 100 k and 1 M records; freshness; groups that"
	@echo "              come and go, and 200 of them; 20 minutes"
	@echo "make image    the sidecar's image (docker or podman); image-spark: the view job's; image-test: built and tried"
	@echo "make release  build all that is released into dist/, and check it: wheel, source archive, bill of materials, chart, images"
	@echo "make sbom     the bill of materials of the image's environment; make lock: its versions, pinned by hash"
	@echo "make clean    remove .venv, caches and build results"

# The package with what it needs at run time, which is all that a demo takes.
$(RUNS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making $(VENV): what the sidecar needs to run, 20 MB to fetch"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	@$(call install,--editable .)
	@touch $@

$(READY): $(RUNS)
	@echo "adding what tests and checks need, 600 MB to fetch, most of it Spark"
	@$(call install,--editable . --group dev)
	@touch $@

# Only for the site: neither demo nor test fetches this.
$(PAGES): $(RUNS)
	@echo "adding what the documentation's site needs, 27 MB to fetch"
	@$(call install,--editable . --group docs)
	@touch $@

# Only to judge the tests.
$(GAUGES): $(READY)
	@echo "adding what measures the tests, 5 MB to fetch"
	@$(call install,--editable . --group measure)
	@touch $@

demo: $(RUNS)
	@$(BIN)/reconsume demo $(ARGS)

demo-view: $(READY)
	@$(BIN)/reconsume demo --view $(ARGS)

# Few of the long tests too, other ones with each commit (tests/support/drawn.py); none of them with DRAW=. What hypothesis
# makes up is the commit's as well, so that a red run is red again.
DRAW = $(shell git rev-parse --short=12 HEAD 2>/dev/null)
test: $(READY)
	$(BIN)/python -m pytest --numprocesses 10 -m "not long and not soak or drawn" --draw="$(DRAW)" \
		$(if $(DRAW),--hypothesis-seed="$(DRAW)") $(ARGS)

test-all: $(READY)
	TESTS_EXAMPLES=150 $(BIN)/python -m pytest --numprocesses 6 -m "not soak" $(ARGS)

# In the sidecars too, as the tests start them; one that is killed has no chance to tell.
coverage: $(GAUGES)
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest --numprocesses 6 -m "not long and not soak" $(ARGS); code=$$?; \
		$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$code

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5) $(ARGS)

EXAMPLES ?= 20000
STORIES := $(wildcard tests/sim/test_*_sim.py)
# So many a test that all tests together tell EXAMPLES stories.
soak-sim: $(READY)
	RECONSUME_SIM_EXAMPLES=$$(( $(EXAMPLES) / $$(cat $(STORIES) | grep -c '^@story') + 1 )) $(BIN)/python -m pytest --numprocesses 2 --timeout 36000 $(STORIES) $(ARGS)

# Kafka's release and the group protocol of the sidecars. Every pair is tried, also behind one that failed.
COMPAT_RUNS ?= 3.9:classic 4.0:classic 4.0:consumer 4.3:classic 4.3:consumer 4.4:classic 4.4:consumer
# Releases of Spark beside the one of the tests, as spark/versions.py has them. Each is fetched once, 400 MB.
SPARK_RUNS ?= 4.0.5 4.3.0
SPARK_FLOWS := tests/spark tests/flow/view/test_spark_consumer.py tests/flow/view/test_lake_tables.py
COMPAT_FLOWS := lifecycle/test_main_job faults/test_sidecar_killed lifecycle/test_rebalance operations/test_redrive faults/test_broker_killed
compat: $(READY)
	@failed=; for run in $(COMPAT_RUNS); do \
		echo "== Kafka $${run%%:*}, group protocol $${run##*:}"; \
		$(BIN)/python -m pytest --kafka "$${run%%:*}" --group-protocol "$${run##*:}" $(ARGS) \
			$(COMPAT_FLOWS:%=tests/flow/%.py) || failed="$$failed $$run"; \
	done; \
	for run in $(SPARK_RUNS); do \
		echo "== Spark $$run"; \
		{ test -d build/pyspark-$$run || $(BIN)/uv pip install --python $(BIN)/python --target build/pyspark-$$run pyspark==$$run; } && \
		PYTHONPATH=$(CURDIR)/build/pyspark-$$run $(BIN)/python -m pytest --numprocesses 2 -m "not soak" $(ARGS) $(SPARK_FLOWS) || failed="$$failed spark:$$run"; \
	done; test -z "$$failed" || { echo "failed on:$$failed" >&2; exit 1; }
packet-loss: $(READY)
	@$(BIN)/python -m tests.packet_loss $(ARGS)

soak: $(READY)
	@MINUTES="$(MINUTES)" SEED="$(SEED)" $(BIN)/python -m tests.soak $(ARGS)

soak-spark: $(READY)
	$(BIN)/python -m tests.soak_spark $(ARGS)

soak-view: $(READY)
	@MINUTES="$(MINUTES)" SEED="$(SEED)" $(BIN)/python -m tests.soak_view $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

# Made from the commands; the page of the settings is made by `reconsume config schema --markdown`.
reference: $(RUNS)
	@$(BIN)/python docs/site/command_reference.py > docs/reference.md

# A chart must be whole in its folder, and a link out of it is not.
charts:
	@for file in dashboard.json podmonitor.yaml rules.yaml; do \
	  cp deploy/k8s/components/monitoring/$$file deploy/helm/reconsume-view/files/$$file; done
	@{ echo "# deploy/k8s/components/monitoring/rules.yaml without the operator's object: make charts writes this file."; \
	  sed -e '1,/^spec:$$/d' -e 's/^  //' deploy/k8s/components/monitoring/rules.yaml; } > deploy/prometheus/rules.yaml

# The variable silences a notice of mkdocs-material about its end of life, which would stand above real warnings.
docs: $(PAGES)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)
	@echo "build/site/index.html; search needs a server: python3 -m http.server --directory build/site"

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

bench-everyday: $(READY)
	$(BIN)/python -m benchmarks.everyday $(ARGS)

bench-peers: $(READY)
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-spark: $(READY)
	$(BIN)/python -m benchmarks.spark_bench $(ARGS)
	$(BIN)/python -m benchmarks.spark_freshness
	$(BIN)/python -m benchmarks.spark_life
	$(BIN)/python -m benchmarks.spark_life --groups 200 --rate 1000

# The images last: where no container engine answers they are named as left out.
release: $(READY)
	@test -z "$$(git status --porcelain --untracked-files=no)" || echo "release: the checkout is changed: its commit ends in +" >&2
	rm -rf dist
	$(BIN)/uv build --quiet --sdist --wheel --out-dir dist .
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python -m pytest --numprocesses 2 tests/package tests/deploy
	$(MAKE) sbom
	@if command -v helm >/dev/null; then helm package --destination dist deploy/helm/reconsume-view; \
		else echo "release: helm is not installed: the chart was not packaged" >&2; fi
	@if test -n "$(ENGINE)" && "$(ENGINE)" info >/dev/null 2>&1; then $(MAKE) image image-spark image-test; \
		else echo "release: no container engine answers: the images were not built" >&2; fi
	@ls -l dist

include deploy/image/image.mk

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
