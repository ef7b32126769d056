"""Marian's own tokenizer: a SentencePiece model for each side, with one vocabulary for both or one each.

Needs the package sentencepiece, which the tests' own environment leaves out (`.ci/run` has a part with it).
"""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from transformers import MarianConfig, MarianMTModel

import mnemoscope as ms
from mnemoscope.atlas import verify
from mnemoscope.errors import PromptError

sentencepiece = pytest.importorskip("sentencepiece")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

ENGLISH = [
    "the house is old and the garden is green",
    "the old man reads a book in the garden",
    "a green door and a red house",
    "she reads the old book at home",
]
GERMAN = [
    "das Haus ist alt und der Garten ist gruen",
    "der alte Mann liest ein Buch im Garten",
    "eine gruene Tuer und ein rotes Haus",
    "sie liest das alte Buch zu Hause",
]


def pieces_of(lines: list[str], path: Path, count: int) -> list[str]:
    """Trains a model on the lines, into a file."""
    made, quietly = io.BytesIO(), {"model_type": "bpe", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, vocab_size=count, **quietly
    )
    path.write_bytes(made.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def number_pieces(pieces: list[str], path: Path) -> dict[str, int]:
    names = dict.fromkeys(["</s>", "<unk>", "<pad>", *pieces])
    path.write_text(json.dumps({name: number for number, name in enumerate(names)}))
    return {name: number for number, name in enumerate(names)}


def build_marian(folder: Path, *, separate: bool) -> Any:
    """Writes `folder/model`, whose source has more tokens than its target where they are separate; the tokenizer."""
    from transformers import MarianTokenizer

    english, german = (
        pieces_of(lines, folder / f"{side}.spm", count)
        for lines, side, count in ((ENGLISH, "source", 60), (GERMAN, "target", 45))
    )
    sources = number_pieces(english if separate else [*english, *german], folder / "vocab.json")
    targets = number_pieces(german, folder / "target_vocab.json") if separate else sources
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    apart = {"target_vocab_file": str(folder / "target_vocab.json"), "separate_vocabs": True} if separate else {}
    tokenizer: Any = MarianTokenizer(*files, **apart)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 64}
    sizes |= {f"{half}_ffn_dim": 24 for half in ("encoder", "decoder")}
    sizes |= {f"{half}_attention_heads": 2 for half in ("encoder", "decoder")}
    special = {"pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    tied = {"share_encoder_decoder_embeddings": not separate, "tie_word_embeddings": not separate}
    config = MarianConfig(vocab_size=len(sources), decoder_vocab_size=len(targets), **sizes, **special, **tied)
    torch.manual_seed(0)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return tokenizer


@pytest.mark.parametrize("separate", [False, True])
def test_a_folder_of_marian_is_mined_as_its_tokenizer_reads_both_sides(separate: bool, tmp_path: Path) -> None:
    tokenizer = build_marian(tmp_path, separate=separate)
    rows = [{"from": source, "to": target} for source in ENGLISH for target in GERMAN]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = ms.load_model(str(tmp_path / "model"))
    fields: dict[str, Any] = {"source_field": "from", "text_field": "to", "progress": False}
    ms.mine(model, tmp_path / "pairs.jsonl", out=tmp_path / "atlas", triggers=5, **fields)
    assert verify(tmp_path / "atlas") == []
    stored = pl.read_parquet(sorted((tmp_path / "atlas/sentences").glob("*.parquet"))).sort("sentence")
    for stated, row in zip(rows, stored.rows(named=True), strict=True):
        assert [*row["tokens"], 0] == tokenizer(text_target=stated["to"])["input_ids"]
        assert row["source_tokens"] == tokenizer(stated["from"])["input_ids"]
    texts = ms.open_atlas(tmp_path / "atlas").vocabulary.texts
    for row in stored.rows(named=True):
        assert "".join(texts[token] for token in row["tokens"]).strip() == row["text"]
    hf, own = MarianMTModel.from_pretrained(tmp_path / "model").eval(), stored.row(0, named=True)
    traced = ms.trace(model, own["text"], source=own["source"])
    with torch.no_grad():
        given = torch.tensor([own["source_tokens"]]), torch.tensor([[2, *own["tokens"]]])
        logits = hf(input_ids=given[0], decoder_input_ids=given[1], use_cache=False).logits[0, 1:]
    assert [each.prediction[0].token.id for each in traced.positions] == logits.argmax(1).tolist()


def test_a_copy_elsewhere_is_the_same_tokenizer_and_one_of_another_model_is_named(tmp_path: Path) -> None:
    tokenizer = build_marian(tmp_path, separate=True)
    before = tokenizer("the house")["input_ids"]
    model = ms.load_model(str(tmp_path / "model"))
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    copied = ms.load_model(str(tmp_path / "copy"))
    assert (model.fingerprint, model.tokenizer_fingerprint) == (copied.fingerprint, copied.tokenizer_fingerprint)
    small = MarianMTModel.from_pretrained(tmp_path / "model")
    small.model.encoder.embed_tokens = torch.nn.Embedding(30, 16, padding_idx=2)
    few = ms.load_model(small, tokenizer=tokenizer)
    with pytest.raises(PromptError, match="the encoder has 30 rows"):
        ms.trace(few, "das Haus", source="the house is old and the garden is green")
    assert tokenizer("the house")["input_ids"] == before
