#!/bin/sh
# The built-in model from nothing: trains it, mines the demo's text with it, and measures what its memories show.
#
#     runs/builtin.sh OUT [OPTIONS FOR TRAIN]
#
# Leaves in OUT: model/ (weights, tokenizer, model card) and atlas/, with its answers. Every step goes on where it was
# stopped: type the same command again. About three hours on two cores; needs the package installed and no network. To ship the
# model, copy OUT/model to src/mnemoscope/models/pydocs and its held_out.txt to src/mnemoscope/corpus/.
set -eu
if [ $# -lt 1 ]; then
  sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
out=$1
shift
. "$(dirname "$0")/common.sh"
# The model card is the last thing that train writes, the manifest the last of mine.
if [ ! -f "$out/model/MODEL_CARD.md" ]; then
  mnemoscope train --out "$out" "$@"
fi
if [ ! -f "$out/atlas/manifest.json" ]; then
  mnemoscope mine "$out/model" builtin:pydocs:stdlib --removals 10 --out "$out/atlas"
fi
mnemoscope analyze "$out/atlas" > /dev/null
"$python" "$here/benchmarks/builtin_goals.py" "$out"
