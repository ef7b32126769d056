#!/bin/sh
# The paper from nothing: trains a model of its kind, mines it, answers its ten questions, and writes the report.
#
#     runs/paper.sh TEXT... VALIDATION OUT
#
# TEXT, one or more, are read one after the other for training; the last of them is mined. VALIDATION is the held-out
# text, for the loss and for the questions on held-out prefixes. Each is what `mine` takes: a file or a quoted glob.
# For the paper's own text: runs/paper.sh wikitext-103/wiki.train.txt wikitext-103/wiki.valid.txt paper
#
# Leaves in OUT: model/ (weights, tokenizer, model card), and atlas/ with analyses/ and report/ in it. Every step goes
# on where it was stopped: type the same command again. Needs the package installed and no network. Further options
# for mine are taken from MINE, for example MINE='--batch-tokens 8192'.
#
# The sizes below are the replica's: the paper's 16 layers, ReLU and four memories for every dimension, small enough for
# two cores of a CPU (some hours of training), with the built-in model's recipe and a vocabulary small enough for the
# width (docs/training.md). The paper's own model (Baevski and Auli 2019; 103 million tokens of text) has these
# proportions, for one graphics card:
#
#     DEVICE=cuda HIDDEN=1024 HEADS=8 VOCABULARY=65536 CONTEXT=512 BATCH=64 STEPS=12000 LEARNING_RATE=0.001 \
#     MAX_BYTES=600000000 MINED_TOKENS=120000000 runs/paper.sh ...
#
# STEPS is about four readings of that text. How the replica differs from the paper's model: docs/training.md.
set -eu
if [ $# -lt 3 ]; then
  sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
device=${DEVICE:-cpu}
layers=${LAYERS:-16} hidden=${HIDDEN:-128} heads=${HEADS:-4} vocabulary=${VOCABULARY:-4096} context=${CONTEXT:-256}
batch=${BATCH:-16} steps=${STEPS:-3600} learning_rate=${LEARNING_RATE:-0.002}
max_bytes=${MAX_BYTES:-70000000} mined_tokens=${MINED_TOKENS:-5000000}
. "$(dirname "$0")/common.sh"

# TEXT... VALIDATION OUT: every TEXT becomes --corpus TEXT, and goes to the end of the arguments.
count=$(($# - 2))
while [ $count -gt 0 ]; do
  text=$1
  shift
  set -- "$@" --corpus "$text"
  count=$((count - 1))
done
validation=$1 out=$2
shift 2

# A finished step is left as it is. The model card is the last thing that train writes, the manifest the last of mine.
if [ ! -f "$out/model/MODEL_CARD.md" ]; then
  mnemoscope train "$@" --validation "$validation" --max-bytes "$max_bytes" --out "$out" --device "$device" \
    --layers "$layers" --hidden "$hidden" --heads "$heads" --vocabulary "$vocabulary" --context "$context" \
    --batch "$batch" --steps "$steps" --learning-rate "$learning_rate"
fi
if [ ! -f "$out/atlas/manifest.json" ]; then
  # shellcheck disable=SC2086
  mnemoscope mine "$out/model" "$text" --validation "$validation" --max-tokens "$mined_tokens" --device "$device" \
    --out "$out/atlas" ${MINE:-}
fi
mnemoscope analyze "$out/atlas"
mnemoscope report "$out/atlas"
mnemoscope verify "$out/atlas"
echo "the model: $out/model; the atlas: $out/atlas; the report: $out/atlas/report/index.html"
