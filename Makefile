# Needs Python 3.11 or newer and make; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
LINTED := django_delayq pyspark_delayq tests example_project benchmarks manage.py

# Else each process that a test or the demo starts compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help site demo spark-demo test soak chaos lint bench bench-spark compare screenshots

help:
	@echo "make demo    the example shop and a day of departures, in under a minute; with RabbitMQ: make demo BROKER=rabbitmq"
	@echo "make demo BROKER=database   the same, with no server beside the database"
	@echo "make demo SHARDS=8 WORKERS=3   the same, with Redis in 8 shards and 3 workers"
	@echo "make spark-demo   a month of departures through Spark: sent, run, archived, reported, reconciled"
	@echo "make test    the suite, in random order"
	@echo "make soak MINUTES=30   50,000 messages amid workers that die, freeze and join, again and again; exits 1 if one is lost or doubled"
	@echo "make chaos SECONDS=120 SEED=1   rounds of all kinds of faults at random times, on each database and without a store; exits 1 if a promise is broken"
	@echo "make site    the site of the documentation, in var/site"
	@echo "make lint    style, types and layers"
	@echo "make bench   the benchmarks"
	@echo "make bench-spark   those of the pipeline on Spark"
	@echo "make compare SCALE=0.1   other queues beside this one, in environments of their own; tables and pictures in var/compare/out"
	@echo "make screenshots   the images in docs/, of what make demo left"

demo: .venv/with-demo $(if $(filter rabbitmq,$(BROKER)),.venv/with-rabbitmq)
	$(BIN)/python manage.py demo $(if $(BROKER),--broker $(BROKER)) $(if $(SHARDS),--shards $(SHARDS)) $(if $(WORKERS),--workers $(WORKERS))

spark-demo: .venv/with-spark
	$(BIN)/python -m example_project.spark_demo

test: .venv/with-dev
	$(BIN)/python -m pytest -n 3 tests
	$(BIN)/python -m pytest -n 2 --ds=example_project.settings example_project

soak: .venv/with-dev
	MINUTES=$(or $(MINUTES),10) $(BIN)/python -m tests.soak

chaos: .venv/with-dev
	SECONDS=$(or $(SECONDS),120) SEED=$(SEED) PLACES=$(PLACES) ROUND=$(ROUND) ROUND_S=$(ROUND_S) ONLY="$(ONLY)" $(BIN)/python -m tests.chaos

lint: .venv/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(LINTED)
	$(BIN)/lint-imports

site: .venv/with-dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs -b html . var/site

bench: .venv/with-dev
	$(BIN)/python -m benchmarks

bench-spark: .venv/with-dev
	$(BIN)/python -m benchmarks spark

compare: .venv/with-dev
	$(BIN)/python -m benchmarks.compare $(if $(SCALE),--scale $(SCALE)) $(if $(ONLY),--only $(ONLY)) $(if $(MEASURES),--measures $(MEASURES)) $(if $(OUT),--out $(OUT))

screenshots: .venv/with-dev
	DJANGO_SETTINGS_MODULE=example_project.demo.settings $(BIN)/python -m example_project.demo.screenshots

# Each of these files tells that .venv has what its name says, as of this pyproject.toml.
.venv/with-demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

# RUNLEVEL keeps the server from being started as a service: the demo starts a node of its own.
.venv/with-rabbitmq: pyproject.toml | .venv/with-demo
	$(BIN)/python -m pip install --quiet --editable '.[demo,rabbitmq]'
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || \
		{ apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends rabbitmq-server; } || \
		{ echo "RabbitMQ is missing; as root on Debian this installs it, else: apt-get install rabbitmq-server"; exit 1; }
	@touch $@

.venv/with-spark: pyproject.toml | .venv/with-demo
	$(BIN)/python -m pip install --quiet --editable '.[demo,spark]'
	@touch $@

.venv/with-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than Python 3.11; try: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "$(PYTHON) has no venv; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
