# Images, locks and the bill of materials; docs/image.md tells what they hold. Included by the Makefile.

ENGINE ?= $(shell command -v docker || command -v podman)
IMAGE ?= reconsume
SPARK_IMAGE ?= reconsume-spark
BASE ?= docker.io/library/python:3.13-slim-trixie
SPARK_BASE ?= docker.io/apache/spark:4.2.1-scala2.13-java17-python3-ubuntu
UV_COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

.PHONY: lock sbom image image-spark image-test

# `make lock ARGS=--upgrade` takes the newest versions; without it what is locked stays while it still fits.
lock: $(READY)
	$(UV_COMPILE) $(ARGS) --extra otel -o deploy/image/requirements.lock pyproject.toml
	$(UV_COMPILE) $(ARGS) -o deploy/image/tools.lock deploy/image/tools.in

# Of the very versions that the image gets, in an environment of their own; and of what both were made.
sbom: $(READY)
	rm -rf build/sbom && mkdir -p build/sbom dist
	$(PYTHON) -m venv --without-pip build/sbom/env
	$(BIN)/uv pip install --quiet --python build/sbom/env/bin/python --require-hashes -r deploy/image/requirements.lock
	$(BIN)/uv build --quiet --wheel --out-dir build/sbom/wheel
	$(BIN)/uv pip install --quiet --python build/sbom/env/bin/python --no-deps --no-index --find-links build/sbom/wheel reconsume
	$(BIN)/cyclonedx-py environment build/sbom/env/bin/python --pyproject pyproject.toml --mc-type application \
		--gather-license-texts --output-reproducible --of JSON -o dist/reconsume.cdx.json
	$(PYTHON) deploy/image/provenance.py \
		--revision "$$(git rev-parse HEAD 2>/dev/null)$$(git diff --quiet HEAD 2>/dev/null || echo -changed)" \
		build/sbom/wheel/*.whl dist/reconsume.cdx.json > dist/reconsume.provenance.json
	@echo "dist/reconsume.cdx.json dist/reconsume.provenance.json"

image:
	@sh deploy/image/build.sh "$(ENGINE)" sidecar "$(IMAGE)" "$(BASE)" $(ARGS)

image-spark:
	@sh deploy/image/build.sh "$(ENGINE)" spark "$(SPARK_IMAGE)" "$(SPARK_BASE)" --build-arg "BASE=$(BASE)" $(ARGS)

image-test: $(READY)
	@sh deploy/image/test.sh "$(ENGINE)" $(BIN)/python $(ARGS)
