#!/bin/sh
# Measures what docs/cause.md says of SmolLM2-135M: 24 prompts, agreement over 100 pairs, an adapter trained on one habit.
#
#     runs/cause.sh MODEL OUT
#
# MODEL is the GGUF that `python runs/real_models.py fetch OUT SmolLM2` fetches; finished parts in OUT are left alone. Needs
# the package installed. About an hour on two quiet cores.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
for part in prompts agreement lora tables; do "$python" runs/cause.py "$1" "$2" "$part"; done
