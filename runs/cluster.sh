#!/bin/sh
# Mines on a Ray cluster of two nodes and once with one thread of one process, and compares every byte of both atlases.
#
#     runs/cluster.sh [TEXT [TOKENS]]
#
# TEXT (builtin:pydocs) and how many of its TOKENS (20000). Both nodes are raylets of this machine with one CPU each, and
# ask for a token of their own. Needs the package installed with `.[ray]`. Prints how long both took and their rates; ends
# with an error at the first difference, and takes the cluster down in any case.
set -eu
cd "$(dirname "$0")/.."
text=${1:-builtin:pydocs} tokens=${2:-20000}
folder=$(mktemp -d)
python=${PYTHON:-python}
export PYTHONPATH="src:tests${PYTHONPATH:+:$PYTHONPATH}"
export RAY_AUTH_MODE=token OMP_NUM_THREADS=1
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN
unset RAY_ADDRESS RAY_AUTH_TOKEN_PATH
echo "folder $folder"

mkfifo "$folder/stay"
"$python" runs/ray_nodes.py 2 < "$folder/stay" > "$folder/address" 2> "$folder/nodes" &
nodes=$!
exec 3> "$folder/stay"
# The nodes end when nobody holds the pipe any more.
leave() {
  exec 3>&-
  wait "$nodes" || true
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
while [ ! -s "$folder/address" ]; do
  kill -0 "$nodes" || { cat "$folder/nodes"; exit 1; }
  sleep 0.2
done
address=$(cat "$folder/address")
echo "two nodes at $address"

mine() {
  out=$1
  shift
  began=$(date +%s.%N)
  "$python" -m mnemoscope mine builtin:pydocs "$text" --max-tokens "$tokens" --device cpu --out "$folder/$out" "$@" 3>&- \
    > "$folder/$out.txt"
  echo "$out $began $(date +%s.%N) $tokens" | awk '{ printf "%s: %.1f s, %.0f tokens/s\n", $1, $3 - $2, $4 / ($3 - $2) }'
}
mine one
mine two --ray "$address" --workers 2
# What a run says of itself (times, versions, memory) is its own; everything else is the plan's.
diff -r -q -x run.json "$folder/one" "$folder/two"
leave
rm -r "$folder"
echo "all byte-identical"
