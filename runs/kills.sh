#!/bin/sh
# Kills mining at random moments, lets it go on, and compares every table with those of a run that was left in peace.
#
#     runs/kills.sh [KILLS [REAL [SEED]]]
#
# KILLS (50) children of a warm process, then REAL (5) kills of the command itself. Needs the package installed.
# Ends with an error at the first difference; what differs then stays in the folder it names.
set -eu
cd "$(dirname "$0")/.."
kills=${1:-50} real=${2:-5} seed=${3:-$(date +%s)}
folder=$(mktemp -d)
python=${PYTHON:-python}
export PYTHONPATH="src:tests${PYTHONPATH:+:$PYTHONPATH}"
echo "seed $seed, folder $folder"
"$python" tests/mining_killed.py warm "$kills" "$seed" "$folder/warm"
[ "$real" -eq 0 ] || "$python" tests/mining_killed.py real "$real" "$seed" "$folder/real"
rm -r "$folder"
echo "all tables byte-identical"
