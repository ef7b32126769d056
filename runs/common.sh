# Sourced by the scripts beside it: `here` (the repository), `python`, and `mnemoscope`, which says what it runs.
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
PYTHONPATH="$here/src${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
mnemoscope() {
  echo "\$ mnemoscope $*" >&2
  "$python" -m mnemoscope "$@"
}
