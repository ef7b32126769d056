#!/bin/sh
# Puts small faults into a room, one at a time, in a copy of the tree, and says how many of them its tests notice.
#
#     runs/mutation.sh ROOM SEED [COUNT [SECONDS]]
#
# ROOM is a folder (questions) or a file (intervals) of src/mnemoscope; COUNT (100) mutants are drawn with SEED. Each runs
# against those of the room's tests that execute the mutated line, up to the first failure. Prints every mutant, the score
# with its 95 % interval, and the survivors; runs/mutation/equivalent_mutants.txt lists those that nothing can notice, and why.
# The tests are those of the level `fast`; with FULL=1 in the environment those of `full`, too.
# Where a room's tests are long, SECONDS bounds those of one mutant, cheapest first: what only others notice survives.
# runs/mutation/mutants.py says what is mutated. Needs the package installed with `.[dev,mutation]`. 5 to 60 minutes.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}runs/mutation"
exec nice -n 10 "$python" runs/mutation/trials.py "$@"
