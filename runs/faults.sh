#!/bin/sh
# Fails every call that changes a disk once, and makes each the last before a power cut; prints how many places were
# tried, and how many held.
#
#     runs/faults.sh [VERB ...] [--sample N] [--seed S] [--only PATTERN] [--out FILE]
#
# VERB is mine, replace (mine --force), merge, analyze, report, search, annotate or serve; all without one. All places
# take hours; --sample N tries N failures and N cuts of each verb, drawn with the seed;
# --only tries those whose call, file and failure match. --out FILE gets a line of JSON for
# every place. Needs the package installed and a C compiler. Exits with 1 where a place did not hold, and tells which.
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" runs/faults.py "$@"
