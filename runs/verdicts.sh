#!/bin/sh
# How often the claims of the questions beyond the paper, and the causal check, say yes of models that know nothing, and
# of planted effects (runs/verdict_draws.py): the table of docs/decisions.md. On one core a draw of all four kinds takes
# about ten seconds; what is drawn is kept in FILE, and the same command goes on.
#
#   runs/verdicts.sh [--draws N] [FILE]
set -eu
draws=200
[ "${1:-}" = --draws ] && { draws=$2; shift 2; }
file=${1:-verdicts.jsonl}
here=$(cd "$(dirname "$0")/.." && pwd)
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONPATH="$here/tests${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$here/runs/verdict_draws.py" "$draws" "$file"
