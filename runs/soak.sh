#!/bin/sh
# Serves an atlas of GPT-2 small's size to 20 readers and 5 annotators, while analyze, report and mine --force run on it
# in turn; prints what the server holds every five minutes, and at the end what did not hold.
#
#     runs/soak.sh [MINUTES [FOLDER]]
#
# MINUTES is 60 without it. FOLDER keeps the model (500 MB) and the atlas for the next time. runs/soak.py says what must
# hold. Ends with an error where something did not. Needs the package installed with `.[dev]`.
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests:benchmarks${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" runs/soak.py "$@"
