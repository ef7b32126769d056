#!/bin/sh
# Kills mining, analyze and report at random moments, lets them go on, and compares every byte with a run left in peace.
#
#     runs/kills.sh [KILLS [REAL [LATER [SEED]]]]
#
# KILLS (50) children of a warm process that mines, REAL (5) kills of the command itself, LATER (10) kills each of what
# `analyze` and `report` do. Needs the package installed. Ends with an error at the first difference; what differs then
# stays in the folder it names.
set -eu
cd "$(dirname "$0")/.."
kills=${1:-50} real=${2:-5} later=${3:-10} seed=${4:-$(date +%s)}
folder=$(mktemp -d)
python=${PYTHON:-python}
export PYTHONPATH="src:tests${PYTHONPATH:+:$PYTHONPATH}"
echo "seed $seed, folder $folder"
kill_at_random() {
  [ "$2" -eq 0 ] || "$python" runs/mining_killed.py "$1" "$2" "$seed" "$folder/$1"
}
kill_at_random warm "$kills"
kill_at_random real "$real"
kill_at_random analyze "$later"
kill_at_random report "$later"
rm -r "$folder"
echo "all byte-identical"
