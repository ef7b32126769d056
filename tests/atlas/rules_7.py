"""How tests/atlas/rules-7.tar.gz was made: atlases, parts and a stopped run as the code of rules 7 left them.

Run from a checkout of commit 51d95a5, whose plans still held paths: `PYTHONPATH=src python rules_7.py rules-7.tar.gz`.
Everything is made in /tmp/somebody, so that absolute paths lie in the manifests that are nobody's. The archive holds
`models/tiny` (GPT-2), `models/long` (Phi-3 with LongRoPE), `texts`, and of each what was mined:

* `atlas`: of tiny, all tables, lenses and answers; `long`: of long, without optional tables;
* `parts/1`, `parts/2`: those of tiny in two; `unfinished`: of tiny, stopped after the pass over the text.
"""

import json
import os
import shutil
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerFast

HOME = Path("/tmp/somebody")
WORDS = (
    *("<s>", "<unk>", "the", "cat", "sat", "on", "mat", "dog", "ran", "home", "a", "bird", "sang", "in", "tree", "red"),
    *("fox", "slept", "under", "old", "house", "at", "night", "and", ".", "small", "green", "hill", "far", "river"),
)
OPTIONS: dict[str, Any] = {
    "triggers": 4, "batch_tokens": 128, "removals": 2, "prefixes": 40, "neighbours": 2,
    "validation": HOME / "texts" / "held.txt",
}  # fmt: skip


def make_models() -> None:
    """Two models of random weights, and their tokenizer of whole words."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>", unk_token="<unk>")
    ends = {"vocab_size": len(WORDS), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    torch.manual_seed(7)
    tiny = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_inner=12, n_positions=96, **ends))
    factors = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    long = Phi3ForCausalLM(Phi3Config(
        hidden_size=16, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=96, original_max_position_embeddings=12,
        rope_scaling={**factors, "rope_theta": 10_000.0}, **ends,
    ))  # fmt: skip
    for name, model in (("tiny", tiny), ("long", long)):
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(HOME / "models" / name)
        words.save_pretrained(HOME / "models" / name)


def make_texts() -> None:
    """Documents of random words, of which the first few are long enough for the table `memorised`."""
    drawn = torch.randint(2, len(WORDS), (60, 80), generator=torch.Generator().manual_seed(7)).tolist()

    def document(number: int) -> str:
        words = [WORDS[token] for token in drawn[number]]
        return " ".join(words[: 80 if number < 4 else 6 + number % 15]).replace(".", "hill") + "\n"

    (HOME / "texts").mkdir(parents=True)
    (HOME / "texts" / "lines.txt").write_text("\n".join(map(document, range(40))))
    (HOME / "texts" / "held.txt").write_text("\n".join(map(document, range(40, 60))))


def main(archive: Path) -> None:
    from mnemoscope import open_atlas
    from mnemoscope.errors import Interrupted
    from mnemoscope.mining import extend, merge, mine
    from mnemoscope.mining.lenses.lens_pass import fit_lenses
    from mnemoscope.questions import write_all

    shutil.rmtree(HOME, ignore_errors=True)
    make_models()
    make_texts()
    tiny, text = str(HOME / "models" / "tiny"), HOME / "texts" / "lines.txt"

    def stop(stage: str, done: float, total: float | None, note: str) -> None:
        if stage == "values":
            raise Interrupted("stopped here")

    mine(tiny, text, out=HOME / "atlas", **OPTIONS)
    extend(HOME / "atlas")
    fit_lenses(HOME / "atlas")
    write_all(open_atlas(HOME / "atlas"))
    mine(str(HOME / "models" / "long"), text, out=HOME / "long", **OPTIONS)
    for number in (1, 2):
        mine(tiny, text, out=HOME / "parts" / str(number), part=(number, 2), **OPTIONS)
    merge(HOME / "merged", [HOME / "parts" / "1", HOME / "parts" / "2"])
    shutil.rmtree(HOME / "merged")
    with suppress(Interrupted):
        mine(tiny, text, out=HOME / "unfinished", progress=stop, **OPTIONS)
    for run in HOME.rglob("run.json"):
        run.write_text(json.dumps(json.loads(run.read_text()) | {"host": "somewhere"}, indent=1))

    def nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = "somebody"
        return None if entry.name.endswith(".lock") else entry

    with tarfile.open(archive, "w:gz") as packed:
        for name in sorted(os.listdir(HOME)):
            packed.add(HOME / name, arcname=name, filter=nobody)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
