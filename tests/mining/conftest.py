"""Tiny models, a text with everything odd in it, and one mined atlas that several tests look at."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as pieces
from transformers import PreTrainedTokenizerFast

from mnemoscope.atlas import Atlas, verify
from mnemoscope.errors import Interrupted
from mnemoscope.mining import extend, mine, steps
from mnemoscope.models import LanguageModel, load_model
from models.conftest import CASES, build

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "home", "bird", "in", "tree")
PLAIN_TEXT = ("the cat sat on the mat and the dog ran home",) * 3
END = "<|endoftext|>"
ENDS = {"bos_token": END, "eos_token": END}


def odd_text(sentences: int = 60, *, seed: int = 0) -> str:
    """Lines with duplicates, blank ones, over-long ones, ones of one token, special strings and white space."""
    chance = random.Random(seed)
    lines = ["a", "", "   ", "the cat sat on the mat", "the", "  the cat sat on the mat ", "x<|endoftext|>y", "\t"]
    for _ in range(sentences):
        lines.append(" ".join(chance.choices(WORDS, k=chance.choice([1, 2, 3, 5, 8]))))
        if chance.random() < 0.2:
            lines.append(chance.choice(lines))
        if chance.random() < 0.1:
            lines.append(" ".join(chance.choices(WORDS, k=40)))
    return "\n".join(lines) + "\n"


def byte_tokenizer(text: Sequence[str] = PLAIN_TEXT, *, rows: int = 270, **special: str) -> Any:
    """A byte-level tokenizer of at most `rows` tokens made for `text`; `special` says which special tokens it has."""
    plain = Tokenizer(pieces.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=rows,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=plain, **special)


def load_bytes(hf: Any, **options: Any) -> LanguageModel:
    """A network as a model that reads bytes, with `<|endoftext|>` as its beginning."""
    return load_model(hf, tokenizer=byte_tokenizer(**ENDS), **options)


def tiny_model(name: str = "gpt2-relu", **special: str) -> LanguageModel:
    """A loaded tiny model of a family of tests/models; with `<|endoftext|>` as its beginning unless told."""
    return load_model(build(name), tokenizer=byte_tokenizer(**special or ENDS))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two cores are shared by the workers, and forked children must not inherit a pool of threads."""
    torch.set_num_threads(1)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """The odd text in a file."""
    path = tmp_path / "text.txt"
    path.write_text(odd_text())
    return path


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model("gpt2")


@pytest.fixture(scope="module")
def whole(model: LanguageModel, request: pytest.FixtureRequest, tmp_path_factory: Any) -> dict[str, bytes]:
    """The tables of the odd text, mined undisturbed with the module's own OPTIONS."""
    path = tmp_path_factory.mktemp("whole") / "odd.txt"
    path.write_text(odd_text())
    return tables_of(mine(model, path, out=path.parent / "atlas", **request.module.OPTIONS))


@pytest.fixture(params=list(CASES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tables_of(atlas: Path | Atlas) -> dict[str, bytes]:
    """The bytes of every table."""
    files = sorted(Path(atlas).rglob("*.parquet"))
    return {path.relative_to(atlas).as_posix(): path.read_bytes() for path in files}


def stop_at_third(monkeypatch: pytest.MonkeyPatch, asked: Any, *, step: str = "take") -> list[Any]:
    """Makes a pass stop once, as by Ctrl-C, at its third step; gives the items of every step, None for the stop."""
    take, taken = getattr(asked, step), list[Any]()

    def stop(self: Any, items: Any, *rest: Any) -> Any:
        if len(taken) == 2:
            taken.append(None)
            raise KeyboardInterrupt
        taken.append(items)
        return take(self, items, *rest)

    monkeypatch.setattr(asked, step, stop)
    return taken


def assert_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    atlas: Path | Atlas,
    model: LanguageModel,
    table: str,
    asked: Any,
    step: str = "take",
) -> None:
    """Stopped at its third step, each of which is a piece, `extend` leaves no table; again, it asks nothing twice and
    makes the same bytes.
    """

    def made() -> dict[str, bytes]:
        return {name: data for name, data in tables_of(atlas).items() if name.startswith((f"{table}/", f"{table}."))}

    before = made()
    monkeypatch.setattr(steps, "PIECE_TOKENS", 1)
    taken = stop_at_third(monkeypatch, asked, step=step)
    with pytest.raises(Interrupted):
        extend(atlas, model, [table], force=True, checkpoint_every=0)
    assert made() == {}
    extend(atlas, model, [table])
    assert made() == before != {}
    items = [str(one if step == "take" else one.prefixes.tolist()) for one in taken if one is not None]
    assert len(set(items)) == len(items) == len(taken) - 1
    assert verify(atlas) == []


def stop_at(stage: str) -> Callable[..., None]:
    """A progress callback that stops a run where a stage begins."""

    def progress(reached: str, *_: Any) -> None:
        if reached == stage:
            raise Interrupted("stopped here")

    return progress


def spoil(model: LanguageModel) -> None:
    """Makes the largest coefficients of layer 1 none, where nobody sees that the model was changed."""

    def change(_: Any, taken: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (torch.where(taken[0] > taken[0].amax() - 1e-6, torch.nan, taken[0]), *taken[1:])

    model.layer(1).ffn.down.module.register_forward_pre_hook(change)
    model.usage = None
