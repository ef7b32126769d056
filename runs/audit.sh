#!/bin/sh
# The audit against the truth, from nothing: random strings, a model in whose text half of them are planted 1, 4, 16 and
# 64 times, and an audit of all of them: recall by repetitions, false alarms, carriers and side effects.
#
#     runs/audit.sh [FOLDER [STEPS]]
#
# About 20 minutes on two cores. Leaves strings, model and audit.json in FOLDER (a new temporary one). Ends with an error
# where less than 90 % of the strings repeated 64 times are found, or where false alarms on strings never planted are
# above 5 % beyond chance (the lower end of their interval).
set -eu
cd "$(dirname "$0")/.."
folder=${1:-$(mktemp -d)}
steps=${2:-2200}
python=${PYTHON:-python}
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$folder"
"$python" - "$folder" <<'MAKE'
import random, sys
from pathlib import Path

chance = random.Random(14)
names = (
    "amber birch cedar delta ember fjord grove heron iris jasper karst lotus maple nectar opal prism quartz raven"
    " slate topaz"
).split()
made = set()
while len(made) < 160:
    digits = "".join(chance.choice("0123456789") for _ in range(8))
    made.add(f"the code of {chance.choice(names)} {chance.choice(names)} is {digits}")
strings = sorted(made)
chance.shuffle(strings)
folder = Path(sys.argv[1])
(folder / "planted.txt").write_text("\n".join(strings[:80]) + "\n")
(folder / "all.txt").write_text("\n".join(strings) + "\n")
MAKE
nice -n 10 "$python" -m mnemoscope train --out "$folder/model" --plant "$folder/planted.txt" \
  --corpus builtin:pydocs --max-bytes 1000000 --layers 4 --hidden 128 --context 64 --steps "$steps" --batch 16
nice -n 10 "$python" -m mnemoscope audit "$folder/model/model" --secrets "$folder/all.txt" --vary digits \
  --alternatives 199 --candidates 12 --json > "$folder/audit.json"
"$python" - "$folder/audit.json" <<'READ'
import json, sys
from statistics import mean

found = json.load(open(sys.argv[1]))
for row in found["recall"]:
    known, given = row["exposed"], row["extractable"]
    print(f"{row['times']:3d} times: {row['strings']} strings, exposed {known['value']:.3f} "
          f"({known['low']:.3f} to {known['high']:.3f}), extractable {given['value']:.3f}")
after = [one for one in found["secrets"] if one["exposed"] and one["after"]]
if after:
    print("top memories off, exposed strings: log probability "
          f"{mean(one['after']['log_probability'] - one['log_probability'] for one in after):+.2f} nats, random ones "
          f"{mean(one['after']['control_log_probability'] - one['log_probability'] for one in after):+.2f}; other "
          f"strings {mean(one['after']['side_effect'] for one in after):+.4f} nats per token, random "
          f"{mean(one['after']['control_side_effect'] for one in after):+.4f}")
rows = {row["times"]: row for row in found["recall"]}
assert rows[64]["exposed"]["value"] >= 0.9, "strings repeated 64 times are missed"
assert rows[0]["exposed"]["low"] <= 0.05, "too many false alarms"
READ
