# Needs Python 3.11 or newer and make; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
LINTED := django_delayq pyspark_delayq tests example_project benchmarks manage.py

.DEFAULT_GOAL := help
.PHONY: help demo spark-demo test lint bench bench-spark screenshots

help:
	@echo "make demo    the example shop and a day of departures, in under a minute; with RabbitMQ: make demo BROKER=rabbitmq"
	@echo "make spark-demo   a month of departures through Spark: sent, run, archived, reported, reconciled"
	@echo "make test    the suite, in random order"
	@echo "make lint    style, types and layers"
	@echo "make bench   the benchmarks"
	@echo "make bench-spark   those of the pipeline on Spark"
	@echo "make screenshots   the images in docs/, of what make demo left"

demo: .venv/with-demo $(if $(filter rabbitmq,$(BROKER)),.venv/with-rabbitmq)
	$(BIN)/python manage.py demo $(if $(BROKER),--broker $(BROKER))

spark-demo: .venv/with-spark
	$(BIN)/python -m example_project.spark_demo

test: .venv/with-dev
	$(BIN)/python -m pytest -n 2 tests
	$(BIN)/python -m pytest -n 2 --ds=example_project.settings example_project

lint: .venv/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(LINTED)
	$(BIN)/lint-imports

bench: .venv/with-dev
	$(BIN)/python -m benchmarks

.PHONY: help demo spark-demo test lint bench bench-spark screenshots

help:
	@echo "make demo    the example shop and a day of departures, in under a minute; with RabbitMQ: make demo BROKER=rabbitmq"
	@echo "make spark-demo   a month of departures through Spark: sent, run, archived, reported, reconciled"
	@echo "make test    the suite, in random order"
	@echo "make lint    style, types and layers"
	@echo "make bench   the benchmarks"
	@echo "make bench-spark   those of the pipeline on Spark"
	@echo "make screenshots   the images in docs/, of what make demo left"

# Each of these files tells that .venv has what its name says, as of this pyproject.toml.
.venv/with-demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

.PHONY: help demo spark-demo test lint bench bench-spark screenshots

help:
	@echo "make demo    the example shop and a day of departures, in under a minute; with RabbitMQ: make demo BROKER=rabbitmq"
	@echo "make spark-demo   a month of departures through Spark: sent, run, archived, reported, reconciled"
	@echo "make test    the suite, in random order"
	@echo "make lint    style, types and layers"
	@echo "make bench   the benchmarks"
	@echo "make bench-spark   those of the pipeline on Spark"
	@echo "make screenshots   the images in docs/, of what make demo left"
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
