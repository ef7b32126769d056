#!/bin/sh
# The whole tour: the demo, one memory, what mining costs, a text of one's own, the same in two parts, the paper's
# questions and the report of both, and verification.
#
#     runs/demo.sh [FOLDER [TOKENS]]
#
# Leaves the atlases in FOLDER (a new temporary one), mines at most TOKENS of each text (all of it). Needs the package
# installed and no network; ends with an error at the first command that fails, or if the parts merge into other
# tables, answer otherwise, or patterns made again differ.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-$(mktemp -d)}
cap=${2:+--max-tokens $2}
python=${PYTHON:-python}
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
mnemoscope() {
  echo "\$ mnemoscope $*" >&2
  "$python" -m mnemoscope "$@"
}
mkdir -p "$folder"
text="$folder/text.txt"
cat README.md docs/*.md LICENSE > "$text"

# shellcheck disable=SC2086
mnemoscope demo --out "$folder/demo" $cap
memory=$("$python" -m mnemoscope demo --out "$folder/demo" --json |
  "$python" -c 'import json, sys; print((json.load(sys.stdin)["striking"] or [{"name": "L7.M0"}])[0]["name"])')
mnemoscope show "$folder/demo" "$memory" --limit 5
mnemoscope inspect builtin:pydocs --corpus "$text"
for part in "" 1/2 2/2; do
  # shellcheck disable=SC2086
  mnemoscope mine builtin:pydocs "$text" --out "$folder/atlas${part:+-part-${part%/*}}" --token-activations --random ${part:+--part $part} $cap
done
mnemoscope merge "$folder/merged" "$folder/atlas-part-1" "$folder/atlas-part-2"
for atlas in atlas merged; do
  mnemoscope analyze "$folder/$atlas" > "$folder/$atlas.answers.txt"
done
patterns=$(cksum < "$folder/merged/patterns.parquet")
mnemoscope analyze "$folder/merged" key_patterns --patterns
[ "$patterns" = "$(cksum < "$folder/merged/patterns.parquet")" ]
mnemoscope report "$folder/atlas"
for atlas in demo atlas merged; do
  mnemoscope verify "$folder/$atlas"
done
(cd "$folder/atlas" && find . -name '*.parquet' -type f) | while read -r table; do
  cmp "$folder/atlas/$table" "$folder/merged/$table"
done
for table in removals prefixes predictions patterns token_activations/layer-000 random/layer-000 analyses/refinement_events; do
  test -s "$folder/atlas/$table.parquet"
done
echo "one run and two merged parts: every table and answer byte-identical; all in $folder"
