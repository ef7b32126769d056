"""A tokenizer of which one entry agrees with nothing: the model is mined or refused in one line, and never otherwise.

Four kinds of tokenizers with a small model, of which one entry of one file is taken away or replaced. What is mined is
read back: every string of the text is there, and every token is one of the model's.
`MNEMOSCOPE_EXAMPLES` tries more of them (runs/fuzz.sh).
"""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mnemoscope.atlas import open_atlas
from mnemoscope.cli.app import app
from mnemoscope.cli.runner import run
from models.small_tokenizers import byte_fallback, byte_level, unigram, wordpiece
from support.hostile_json import ODD, changed, entries

pytestmark = pytest.mark.full

Capture = pytest.CaptureFixture[str]
EXAMPLES = int(os.environ.get("MNEMOSCOPE_EXAMPLES", "24"))
ROWS = 280
KINDS = {"byte level": byte_level, "byte fallback": byte_fallback, "unigram": unigram, "wordpiece": wordpiece}
LINES = ["the cat", "a b", "play the", "a at the cat", "the <s> sat", "café 日本"]
SPOILT = ("tokenizer.json", "tokenizer.json", "tokenizer.json", "tokenizer_config.json", "config.json")
"""What has a hostile entry, as often as it stands here."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 32, "vocab_size": ROWS}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    found = {}
    for name, made in KINDS.items():
        found[name] = tmp_path_factory.mktemp("model")
        model.save_pretrained(found[name])
        PreTrainedTokenizerFast(tokenizer_object=made(), unk_token="<unk>").save_pretrained(found[name])
    return found


def spoil(folder: Path, draw: random.Random) -> str:
    """Puts another value in one entry of one file, or takes it away; says which."""
    name = draw.choice(SPOILT)
    whole = json.loads((folder / name).read_text(encoding="utf-8"))
    at = draw.choice(list(entries(whole, few=("model", "vocab"))))
    new = draw.choice(ODD)
    (folder / name).write_text(json.dumps(changed(whole, at, new)), encoding="utf-8")
    return f"{name}, {'.'.join(map(str, at))}: {str(new)[:40]!r}"


def fault(model: Path, text: Path, out: Path, capsys: Capture) -> str:
    """What is wrong with how this model is mined; nothing where all is well."""
    arguments: list[Any] = [str(model), str(text), "--out", str(out), "--split", "line", "--prefixes", "4"]
    code = run(app, ["mine", *arguments, "--removals", "1", "--neighbours", "0", "--json"])
    told = capsys.readouterr().err
    if code == 2:
        refused = told.strip().splitlines()
        return "" if refused and refused[-1].startswith("mnemoscope: ") and "bug" not in told else told[-300:]
    if code != 0 or "Traceback" in told:
        return f"{code}: {told[-300:]}"
    sentences = open_atlas(out).table("sentences")
    strings = sorted(sentences["text"].to_list())
    ids = {token for some in sentences["tokens"].to_list() for token in some}
    if strings != sorted(LINES):
        return f"the text became {strings}"
    return "" if all(0 <= token < ROWS for token in ids) else f"tokens {sorted(ids)[-3:]}"


@pytest.mark.timeout(86_400 if "MNEMOSCOPE_EXAMPLES" in os.environ else 300)
def test_a_spoilt_tokenizer_is_read_or_refused_in_one_line(models: Any, tmp_path: Path, capsys: Capture) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    wrong, mined, seed = [], 0, int(os.environ.get("MNEMOSCOPE_SEED", "0"))
    for number in range(EXAMPLES):
        draw = random.Random(1_000_000 * seed + number)
        kind, model, out = draw.choice(list(models)), tmp_path / "model", tmp_path / "atlas"
        for folder in (model, out):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(models[kind], model)
        done = f"{number}: {kind}, {spoil(model, draw)}"
        try:
            found = fault(model, text, out, capsys)
        except BaseException as problem:  # tokenizers is Rust: its panics are no Exception
            found = f"{type(problem).__name__}: {problem}"[:300]
        if found:
            wrong.append(f"{done}; {found}")
        mined += (out / "manifest.json").is_file()
    assert not wrong, f"{len(wrong)} of {EXAMPLES}\n" + "\n".join(wrong)
    assert 0 < mined < EXAMPLES
