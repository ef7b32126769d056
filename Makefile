# The same commands as .ci/run, for an environment that is already active (`pip install -c constraints.txt -e '.[dev]'`).
.PHONY: all test faults chance whole browser lint types imports docs site ci

all: lint types imports test

test:
	python -m pytest -n 2

faults:
	python -m pytest -n 2 --dist load -m 'faults and not slow'

chance:
	python -m pytest -n 2 --dist load -m 'chance and not slow'

whole:
	python -m pytest -n 2 -m 'whole and not slow'

browser:
	python -m pytest -n 2 -m 'browser and not faults and not slow'

lint:
	ruff check .

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
