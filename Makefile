# The same commands as .ci/run, for an environment that is already active (`pip install -c constraints.txt -e '.[dev]'`).
.PHONY: all test full lint types imports docs site ci

all: lint types imports test

test:
	python -m pytest -n 2

full:
	python -m pytest -n 2 --dist worksteal -m 'full and not slow'

lint:
	ruff check .
	ruff format --check .

types:
	mypy

imports:
	lint-imports

docs:
	python -m mnemoscope.cli.reference > docs/cli.md

site:
	sphinx-build -W --keep-going -c docs . site

ci:
	.ci/run
