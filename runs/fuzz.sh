#!/bin/sh
# Bad inputs by the thousand: requests that Schemathesis makes up for every route of the pages, texts of any bytes, and
# manifests, tokenizers and tables with one hostile entry or column. No traceback, no 500, no answer above 10 seconds, no
# growing memory.
#
#     runs/fuzz.sh [REQUESTS [INPUTS]]
#
# REQUESTS of each route (as a stranger and as an annotator; default 1000, about 10^5 in all: hours), INPUTS of
# each kind (default 1000; tables and tokenizers about two seconds each). Ends with an error, and says each case, where one
# does not hold.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" MNEMOSCOPE_SEED="${MNEMOSCOPE_SEED:-1}"
MNEMOSCOPE_EXAMPLES=${1:-1000} "$python" -m pytest -q -m full -s -n0 --timeout=86400 tests/web/test_every_route.py
export MNEMOSCOPE_EXAMPLES="${2:-1000}"
"$python" -m pytest -q -m full -n0 --timeout=86400 tests/corpus/test_hostile_texts.py tests/cli/test_hostile_tokenizers.py \
  tests/cli/test_hostile_tables.py
"$python" -m pytest -q -m full -n0 tests/cli/test_hostile_manifests.py
