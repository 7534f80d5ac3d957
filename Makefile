# `make` alone says what there is. Paths are relative throughout: the folder may have a space in its name.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
# Without a home that can be written to, pip has no place for its cache.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet $(shell [ -w "$${HOME:-}" ] || echo --no-cache-dir)
# A release of uv, the tool that writes the lock; nothing else uses it.
UV := uv==0.13.8

# What may be said on the command line: make run STORE=/data/offsets, make test ARGS="-k replay -x".
PYTHON ?=
STORE ?= store
CAPTURE ?= tests/data/captures/4.2.0-kip848
JAR_SETS ?= delta delta-spark-4.2
SERVER_SETS := kafka kafka-3.9 kafka-0.10 zookeeper connect spark-kafka s3mock
BESIDE_KAFKA_SETS := kafka-tools kafka-streams
JOBS ?= 2
SPARK ?= 4.1.4
ARGS ?=
export STORE CAPTURE

# Whatever Spark or Python the caller's shell is set up for: here it is the environment's own.
unexport SPARK_HOME SPARK_CONF_DIR PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYTHONPATH PYTHONHOME
# Without bytecode each of the hundred processes that tests start compiles the project and its tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# By $(error) and not by a failing command: then the reason is the only line that make prints.
.PHONY: check
check:
	@$(eval SYSTEM_PYTHON := $(shell PYTHON='$(PYTHON)' scripts/check_tools.sh 2>&1))
	$(if $(filter setup:,$(firstword $(SYSTEM_PYTHON))),$(error $(SYSTEM_PYTHON)))

# Each stamp is written last, so what was interrupted is done again. A half-made environment cannot be told from a
# whole one by looking at it: one without its stamp, or made from an older lock, is thrown away.
$(DONE)/packages: requirements.lock | check
	@echo "setup: the locked packages into $(VENV) (about a minute: Spark is 400 MB)"
	rm -rf $(VENV)
	'$(SYSTEM_PYTHON)' -m venv $(VENV)
	# First what builds, from the same lock: then nothing comes in that the lock does not name.
	awk '/^[a-z]/ { wanted = /^(setuptools|wheel)==/ } wanted' requirements.lock > $(VENV)/build.lock
	$(PIP) install --require-hashes --no-deps -r $(VENV)/build.lock
	$(PIP) install --require-hashes --no-deps --no-build-isolation --use-pep517 -r requirements.lock
	mkdir $(DONE)
	touch $@

$(DONE)/project: pyproject.toml $(DONE)/packages
	@echo "setup: the project itself, editable"
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(DONE)/spark: $(wildcard $(JAR_SETS:%=conf/jars/%/*)) conf/log4j2.properties scripts/fetch_jars.py scripts/find-spark-home $(DONE)/packages
	@echo "setup: the JARs ($(JAR_SETS)) into the environment's Spark"
	spark="$$($(BIN)/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')"
	$(BIN)/python scripts/fetch_jars.py $(JAR_SETS)
	mkdir -p "$$spark/conf"
	cp conf/log4j2.properties "$$spark/conf/"
	cp scripts/find-spark-home $(BIN)/find-spark-home
	touch $@

# Its own folder, made anew, so that no JAR of an older set is left on a broker's class path.
$(DONE)/kafka: $(wildcard $(SERVER_SETS:%=conf/jars/%/*) $(BESIDE_KAFKA_SETS:%=conf/jars/%/*)) scripts/fetch_jars.py $(DONE)/packages
	@echo "kafka: the JARs of brokers, Kafka Connect, ZooKeeper, an S3 server and Spark's Kafka source (168 MB) into $(VENV): $(SERVER_SETS)"
	for set in $(SERVER_SETS); do
		rm -rf "$(VENV)/$$set"
		$(BIN)/python scripts/fetch_jars.py --into "$(VENV)/$$set" "$$set"
	done
	$(BIN)/python scripts/fetch_jars.py --into $(VENV)/kafka $(BESIDE_KAFKA_SETS)
	touch $@

$(DONE)/s3: $(wildcard conf/jars/s3/*) scripts/fetch_jars.py $(DONE)/packages
	@echo "s3: the JARs of Hadoop's S3 client (13 MB) into the environment's Spark"
	$(BIN)/python scripts/fetch_jars.py s3
	touch $@

.PHONY: setup
setup: check $(DONE)/packages $(DONE)/project $(DONE)/spark ## the environment in .venv; needs Python 3.11, Java 17, and the network once

.PHONY: kafka
kafka: setup $(DONE)/kafka ## JARs of real Kafka brokers, Kafka Connect, ZooKeeper and an S3 server, which tests ask and `make bench` measures; needs the network once

.PHONY: s3
s3: setup $(DONE)/s3 ## JARs with which Spark opens s3:// and s3a://; needs the network once

.PHONY: run
run: setup $(if $(filter s3://% s3a://%,$(STORE)),s3) ## a real broker's log, from its segment files to the table of current offsets (STORE=store, or s3://bucket/store)
	@echo "run 1/3: read the log segments of a Kafka 4.2 broker into the log table of $$STORE"
	$(BIN)/offsets ingest-segments --store "$$STORE" "$$CAPTURE/segments"
	echo "run 2/3: fold the log into the state tables, a Spark stream that ends when it has caught up"
	$(BIN)/spark-submit --properties-file conf/spark-defaults.conf jobs/fold_stream.py --store "$$STORE" --available-now
	echo "run 3/3: the committed offsets of every group"
	$(BIN)/offsets describe --store "$$STORE" --all-groups

.PHONY: test
test: setup kafka s3 ## the tests but those of the targets below, two files at a time (JOBS=0: one by one; ARGS="-k replay -x" goes to pytest)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

.PHONY: test-slow
test-slow: setup kafka s3 ## the slow tests, as long again: more servers, kills, clusters, both ways in which Spark evaluates
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m slow $(ARGS)

.PHONY: test-fast
test-fast: setup ## the tests that take neither Spark nor a broker nor a process: nine minutes on two cores
	@$(BIN)/python -m pytest -n $(JOBS) -m "not (spark or kafka or process or slow)" $(ARGS)

# The versions of the lock are the upper end of the ranges. Tests that start no Spark, no broker and no process. Some import
# what Spark 4.2 added; `make test-spark` runs older ones.
.PHONY: test-lowest
test-lowest: check ## the unit tests with the lowest versions that pyproject.toml allows; needs the network
	@trap 'rm -rf $(VENV).lowest' EXIT
	'$(SYSTEM_PYTHON)' -m venv --clear $(VENV).lowest
	$(VENV).lowest/bin/python -m pip --disable-pip-version-check --quiet install $(UV)
	uv="$(VENV).lowest/bin/uv pip"
	echo 'pyspark>=4.2' | $$uv compile pyproject.toml - --extra dev --extra build --resolution lowest-direct --python $(VENV).lowest/bin/python \
		--no-header --no-annotate --quiet --output-file $(VENV).lowest/versions
	$$uv install --quiet --no-deps --python $(VENV).lowest/bin/python -r $(VENV).lowest/versions
	$(VENV).lowest/bin/python -m pytest -n $(JOBS) -m "not (spark or kafka or process or slow)" tests/unit $(ARGS)

# In an environment made like the project's, with the lock's versions of all but Spark. The JARs of S3A and of Spark's
# Kafka source are those of the lock's Spark, so tests of S3 and of brokers are left out. The source of `follow` and the
# example need Spark 4.2: what imports them is left out before.
.PHONY: test-spark
test-spark: OTHER := $(VENV).spark-$(SPARK)
test-spark: check ## the tests of Spark with another version of it (SPARK=4.1.4); needs the network
	@trap 'rm -rf $(OTHER)' EXIT
	$(MAKE) VENV=$(OTHER) $(OTHER)/.done/packages
	$(OTHER)/bin/python -m pip --disable-pip-version-check --quiet install --no-build-isolation pyspark==$(SPARK)
	$(MAKE) VENV=$(OTHER) JAR_SETS="delta delta-spark-$(basename $(SPARK))" setup
	$(OTHER)/bin/python -m pytest -n $(JOBS) --dist loadfile -m "spark and not kafka" \
		--ignore=tests/cli/test_cluster.py --ignore=tests/spark/test_storage_faults.py \
		$(if $(filter 4.0.% 4.1.%,$(SPARK)),-k "not s3 and not (bad_input and follow)" --ignore=tests/streaming/test_file_source.py,-k "not s3") \
		tests/test_session.py tests/spark tests/streaming tests/readers tests/cli $(ARGS)

# The seed is chosen once and printed: a run that failed is repeated with it.
.PHONY: test-long
test-long: SEED ?= $(shell date +%s)
test-long: setup kafka s3 ## more rounds of kills and of chance, with a seed of their own (SEED=... repeats a run)
	@seed=$(SEED)
	echo "test-long: SEED=$$seed repeats this run"
	OFFSETS_TEST_SEED=$$seed $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "long or chance or hypothesis" --hypothesis-seed=$$seed $(ARGS)

# Half of the time is for the test that begins last; one that is not done by then counts as not run. A test
# that fails runs once more, with the same seed and as much time.
.PHONY: test-sample
test-sample: SEED ?= $(shell date +%s)
test-sample: SAMPLE_SECONDS ?= 900
test-sample: setup kafka s3 ## a random tenth of the tests that are long or of chance, in a quarter of an hour (SEED=... repeats a run)
	@seed=$(SEED)
	echo "test-sample: SEED=$$seed repeats this run"
	export OFFSETS_TEST_SEED=$$seed OFFSETS_TEST_SECONDS=$(SAMPLE_SECONDS)
	run() { $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "long or chance" --hypothesis-seed=$$seed $(ARGS) "$$@"; }
	status=0
	OFFSETS_TEST_SHARE=0.1 run --cache-clear || status=$$?
	if [ $$status = 1 ]; then
		echo "test-sample: the tests that failed run once more, with SEED=$$seed"
		run --last-failed --last-failed-no-failures none
	elif [ $$status != 5 ]; then
		exit $$status
	fi

.PHONY: test-mutations
test-mutations: SEED ?= $(shell date +%s)
test-mutations: setup ## break the code at 200 random places: what share do the unit tests notice? (SEED=... repeats a run)
	@$(BIN)/python scripts/generated_mutations.py --sample 200 --seed $(SEED) $(ARGS)

.PHONY: lint
lint: setup ## ruff's rules and format, mypy's types
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: format
format: setup ## let ruff format and fix what it can
	@$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: setup kafka ## the benchmarks, full size
	@$(BIN)/python benchmarks/run.py $(ARGS)

.PHONY: bench-quick
bench-quick: setup kafka ## the benchmarks, small: do they run, and roughly how fast
	@$(BIN)/python benchmarks/run.py --quick $(ARGS)

.PHONY: docs
docs: setup ## write docs/api.md anew from the docstrings of the public names
	@$(BIN)/python scripts/api_docs.py

.PHONY: dist
dist: setup ## the wheel and the source archive into dist/: equal, byte by byte, for each build of a commit
	@export SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}"
	$(BIN)/python scripts/build_dist.py dist

.PHONY: lock
lock: check ## write requirements.lock anew from pyproject.toml (UPGRADE=1: the newest versions that it allows)
	@trap 'rm -rf $(VENV).lock' EXIT
	'$(SYSTEM_PYTHON)' -m venv --clear $(VENV).lock
	$(VENV).lock/bin/python -m pip --disable-pip-version-check --quiet install $(UV)
	$(if $(UPGRADE),,cp requirements.lock $(VENV).lock/new)
	$(VENV).lock/bin/uv pip compile pyproject.toml --extra dev --extra build --universal --python-version 3.11 \
		--generate-hashes --no-header --no-emit-index-url --quiet --output-file $(VENV).lock/new
	{ echo '# Made by `make lock` from pyproject.toml: the exact packages and their hashes. Not edited by hand.'
	  grep -v '^# Made by' $(VENV).lock/new; } > $(VENV).lock/whole
	mv $(VENV).lock/whole requirements.lock

.PHONY: clean
clean: ## remove the environment and the tools' caches (stores stay)
	@rm -rf $(VENV) $(VENV).lock $(VENV).lowest $(VENV).spark-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
