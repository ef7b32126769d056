"""Texts read in batches have the numbers of plain transformers hooks, one text at a time; `at`, `reduce` are numpy's.

Tolerance: 1e-5, and 1e-5 of the largest number of the array, for a batch adds in another order than one text.
"""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import mnemoscope as ms
from mnemoscope.errors import MemoryIdError, ModelUnsupported, NotFinite, OptionError, PromptError
from mnemoscope.models import load_model
from mnemoscope.models.forward.batches import default_batch_tokens
from mnemoscope.models.opening.huggingface import builtin_folder
from models.conftest import build
from models.expert_models import HandRead, build_mixture
from models.small_tokenizers import byte_level

TEXTS = [
    "the cat sat on the mat",
    "a",
    "Return a list of all the names that are bound in the module's namespace.",
    "the cat sat on the hat",
    "dogs",
]
Slow = Callable[[str], dict[Any, NDArray[Any]]]
"""The numbers `[position, entry]` of one text, by layer or by stream and layer."""


def hooked(network: Any, modules: dict[Any, tuple[str, str]], ids: Sequence[int]) -> dict[Any, NDArray[Any]]:
    """What enters or leaves some modules of a network that reads one text, by forward hooks."""
    seen: dict[Any, NDArray[Any]] = {}
    handles = []
    for name, (path, end) in modules.items():

        def keep(_: Any, given: Any, output: Any, name: Any = name, end: str = end) -> None:
            tensor = given[0] if end == "in" else output[0] if isinstance(output, tuple) else output
            seen[name] = tensor[0].numpy().copy()

        handles.append(network.get_submodule(path).register_forward_hook(keep))
    with torch.inference_mode():
        network(input_ids=torch.tensor([list(ids)]))
    for handle in handles:
        handle.remove()
    return seen


def pydocs() -> tuple[ms.LanguageModel, Slow, Slow]:
    folder = builtin_folder("pydocs")
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    layers = {n: f"gpt_neox.layers.{n}" for n in range(6)}

    def slow(modules: dict[Any, tuple[str, str]], text: str) -> dict[Any, NDArray[Any]]:
        ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        return {name: found[1:] for name, found in hooked(network, modules, ids).items()}

    coefficients = {n: (f"{path}.mlp.dense_4h_to_h", "in") for n, path in layers.items()}
    streams = {("ffn_output", n): (f"{path}.mlp", "out") for n, path in layers.items()}
    streams |= {("attention", n): (f"{path}.attention", "out") for n, path in layers.items()}
    streams |= {("layer_output", n): (path, "out") for n, path in layers.items()}
    streams |= {("residual", n): (f"{path}.post_attention_layernorm", "in") for n, path in layers.items()}
    return ms.load_model("builtin:pydocs", device="cpu"), partial(slow, coefficients), partial(slow, streams)


def llama() -> tuple[ms.LanguageModel, Slow, Slow]:
    network = build("llama", max_position_embeddings=256)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    model = load_model(network, tokenizer=tokenizer)
    assert model.beginning.token is None  # position 0 is read like any other

    def slow(modules: dict[Any, tuple[str, str]], text: str) -> dict[Any, NDArray[Any]]:
        return hooked(network, modules, tokenizer(text, add_special_tokens=False)["input_ids"])

    layers = {n: f"model.layers.{n}" for n in range(2)}
    coefficients = {n: (f"{path}.mlp.down_proj", "in") for n, path in layers.items()}
    streams = {("ffn_output", n): (f"{path}.mlp", "out") for n, path in layers.items()}
    streams |= {("attention", n): (f"{path}.self_attn", "out") for n, path in layers.items()}
    streams |= {("ffn_input", n): (f"{path}.mlp", "in") for n, path in layers.items()}
    streams |= {("ffn_update", n): (f"{path}.mlp", "out") for n, path in layers.items()}
    return model, partial(slow, coefficients), partial(slow, streams)


def mixture() -> tuple[ms.LanguageModel, Slow, Slow | None]:
    network = build_mixture("qwen2_moe")
    model = load_model(network, tokenizer=PreTrainedTokenizerFast(tokenizer_object=byte_level()))
    hand = HandRead(network, "qwen2_moe")

    def slow(text: str) -> dict[Any, NDArray[Any]]:
        return {layer: found.numpy() for layer, found in enumerate(hand.read(model.encode([text])[0])[0])}

    return model, slow, None


CASES = {"pydocs": pydocs, "llama": llama, "mixture": mixture}


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[ms.LanguageModel, Slow, Slow | None]:
    return CASES[request.param]()


@pytest.fixture(scope="module")
def small() -> ms.LanguageModel:
    return llama()[0]


def near(found: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, atol=1e-5 * max(1.0, float(np.abs(expected).max())), rtol=1e-5)


def texts_for(model: ms.LanguageModel) -> list[str]:
    return [text[: model.longest] for text in TEXTS]  # a token is one byte, or more


def test_coefficients_are_those_of_hooks_one_text_at_a_time(case: Any) -> None:
    model, slow, _ = case
    texts = texts_for(model)
    expected = [slow(text) for text in texts]
    found = model.coefficients(texts, as_arrays=True)
    assert (found.axes, list(found)) == (("text", "position", "memory"), list(range(model.sizes.layers)))
    for layer in range(model.sizes.layers):
        for number, each in enumerate(expected):
            near(found[layer][number, : len(each[layer])], each[layer])
            assert np.isnan(found[layer][number, len(each[layer]) :]).all()
        assert found[layer].shape == (len(texts), max(len(each[0]) for each in expected), model.sizes.memories[layer])
    frame = model.coefficients(texts)
    rows = [each[layer].T.ravel() for each in expected for layer in range(model.sizes.layers)]
    near(frame["coefficient"].to_numpy(), np.concatenate(rows))
    assert frame["text"].unique(maintain_order=True).to_list() == texts
    for number, text in enumerate(texts):
        own = frame.filter(pl.col("text") == text, layer=1, memory=2)
        assert own["token"].to_list() == list(found.tokens[number])
        assert own["position"].to_list() == list(range(len(expected[number][0])))
        alone = model.coefficients(text)
        assert alone.schema == {name: kind for name, kind in frame.schema.items() if name != "text"}
        near(alone["coefficient"].to_numpy(), frame.filter(pl.col("text") == text)["coefficient"].to_numpy())


def test_at_and_reduce_are_those_of_numpy(case: Any) -> None:
    model, slow, _ = case
    texts = texts_for(model)
    expected = [slow(text) for text in texts]
    shortest = min(len(each[0]) for each in expected)
    obvious: dict[tuple[Any, Any], Callable[[Any], Any]] = {
        ("all", "max"): lambda rows: rows.max(0),
        ("all", "mean"): lambda rows: rows.mean(0),
        ("all", "last"): lambda rows: rows[-1],
        ("last", None): lambda rows: rows[-1],
        ("last", "mean"): lambda rows: rows[-1],
        (shortest - 1, None): lambda rows: rows[shortest - 1],
        (-shortest, "max"): lambda rows: rows[-shortest],
    }
    for (at, reduce), take in obvious.items():
        found = model.coefficients(texts, [1], at=at, reduce=reduce, as_arrays=True)
        assert (found.axes, found[1].shape) == (("text", "memory"), (len(texts), model.sizes.memories[1]))
        near(found[1], [take(each[1]) for each in expected])
        frame = model.coefficients(texts, [1], at=at, reduce=reduce)
        near(frame["coefficient"].to_numpy().reshape(len(texts), -1), found[1])
        beside = ["position", "token"] if reduce is None else []
        assert frame.columns == ["text", "layer", "memory", *beside, "coefficient"]
        if at == "last" and reduce is None:
            ends = [len(each[1]) - 1 for each in expected]
            assert frame.filter(memory=0).select("position").to_series().to_list() == ends


def test_some_memories_are_columns_of_all(case: Any) -> None:
    model, texts = case[0], texts_for(case[0])
    whole = model.coefficients(texts, as_arrays=True)
    last = model.sizes.memories[1] - 1
    names = [str(model.numbering(1).name(1, last)), model.numbering(0).name(0, 3), model.numbering(1).name(1, 0)]
    named = SimpleNamespace(id=names[1])  # as the memories of an atlas
    found = model.coefficients(texts, memories=iter([names[0], named, names[2]]), as_arrays=True)
    assert found.memories == {1: (last, 0), 0: (3,)}
    ranges, those = "L1.M2-4,L0.M1", {1: (2, 3, 4), 0: (1,)}
    if model.numbering(1).routed:
        ranges, those = "L1.E0.M2-4", {1: (2, 3, 4)}
    assert model.coefficients(texts[0], memories=ranges, as_arrays=True).memories == those
    assert np.array_equal(found[1], whole[1][..., [last, 0]], equal_nan=True)
    assert np.array_equal(found[0], whole[0][..., [3]], equal_nan=True)
    frame = model.coefficients(texts[0], memories=names)
    assert frame.select("layer", "memory").unique(maintain_order=True).rows() == [(1, last), (1, 0), (0, 3)]
    near(frame.filter(layer=0)["coefficient"].to_numpy(), whole[0][0, : len(whole.tokens[0]), 3])
    numbers = model.coefficients(texts, [1, 0], memories=np.array([5, 2]), as_arrays=True)
    assert numbers.memories == {1: (5, 2), 0: (5, 2)}
    assert np.array_equal(numbers[0], whole[0][..., [5, 2]], equal_nan=True)


@pytest.mark.parametrize("name", ["pydocs", "llama"])
def test_streams_are_those_of_hooks_one_text_at_a_time(name: str) -> None:
    model, _, slow = CASES[name]()
    assert slow is not None
    texts = texts_for(model)
    expected = [slow(text) for text in texts]
    streams = list(dict.fromkeys(stream for stream, _ in expected[0]))
    found = model.capture(texts, streams)
    assert (found.axes, set(found)) == (("text", "position", "hidden"), set(expected[0]))
    for key, array in found.items():
        for number, each in enumerate(expected):
            near(array[number, : len(each[key])], each[key])
            assert np.isnan(array[number, len(each[key]) :]).all()
    last = model.capture(texts, streams[0], [1], at="last")
    assert (last.axes, list(last)) == (("text", "hidden"), [(streams[0], 1)])
    near(last[streams[0], 1], [each[streams[0], 1][-1] for each in expected])
    mean = model.capture(texts[0], [streams[1]], [0], reduce="mean")
    near(mean[streams[1], 0][0], expected[0][streams[1], 0].mean(0))


def test_blocks_behind_the_last_layer_asked_for_do_not_run(small: ms.LanguageModel) -> None:
    ran: list[str] = []
    block = small.layer(1).block
    handle = block.register_forward_hook(lambda *_: ran.append("block 1"))
    small.coefficients("a", [0])  # a new hook is compared once, in whole forwards
    ran.clear()
    small.coefficients(TEXTS, [0], reduce="max")
    small.capture(TEXTS, "layer_output", [0])
    assert ran == []
    small.capture(TEXTS, "ffn_input", [1])
    handle.remove()
    assert ran


def test_texts_of_a_batch_share_a_forward(small: ms.LanguageModel) -> None:
    shapes: list[tuple[int, ...]] = []
    handle = small.anatomy.first_block.register_forward_pre_hook(
        lambda _, given, named: shapes.append(tuple((given or (named["hidden_states"],))[0].shape[:2])),
        with_kwargs=True,
    )
    texts = [f"text {number % 10}" for number in range(3_000)]
    small.coefficients(texts, [0], memories=[0], at="last")
    handle.remove()
    shapes = shapes[1:] if shapes[0][0] < 10 else shapes  # what is compared before a use
    assert sum(rows for rows, _ in shapes) == 3_000
    assert len(shapes) <= 1 + 3_000 * 6 // default_batch_tokens(small)


@pytest.mark.parametrize("asked", [{"reduce": "max"}, {"memories": ["L1.M1"]}])
def test_beside_a_batch_nothing_is_held_that_is_larger_than_the_result(
    small: ms.LanguageModel, asked: dict[str, Any]
) -> None:
    held: list[tuple[int, int]] = []

    def look(*_: Any) -> None:
        tensors = {id(one): one.nbytes for one in gc.get_objects() if issubclass(type(one), torch.Tensor)}
        held.append((sum(tensors.values()), tracemalloc.get_traced_memory()[0]))

    texts = [f"number {number:05d} of these texts" for number in range(4_000)]
    small.coefficients(texts[:2], as_arrays=True, **asked)
    handle = small.anatomy.first_block.register_forward_hook(look)
    tracemalloc.start()
    found = small.coefficients(texts, as_arrays=True, **asked)
    tracemalloc.stop()
    handle.remove()
    held = held[-8:]
    assert len(held) == 8, "the text has too few batches"
    every = sum(1 for _ in texts) * len(small.encode(texts[:1])[0]) * sum(small.sizes.memories) * 4
    assert sum(array.nbytes for array in found.values()) < every / 8
    assert held[-1][0] - held[0][0] < every / 100
    assert held[-1][1] - held[0][1] < every / 100


def test_chats_and_texts_stand_side_by_side() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    model = load_model(build("llama"), tokenizer=tokenizer)
    chat = [{"role": "user", "content": "the cat"}]
    rendered = model.prompt_text(chat)
    found = model.coefficients(["abc", chat], [0], memories=0)
    of_chat = found.filter(pl.col("text") == str(rendered))
    assert of_chat.drop("text").equals(model.coefficients(chat, [0], memories=0))
    assert of_chat["position"].to_list()[0] == -rendered.start < 0
    own = of_chat.filter(pl.col("position").is_between(0, rendered.own - 1))
    assert "".join(own["token"]) == "the cat"
    asked = {at: model.coefficients(chat, [0], memories=0, at=at)["position"].to_list() for at in (0, -1, "last")}
    assert asked == {0: [0], -1: [rendered.own - 1], "last": [of_chat["position"].max()]}
    arrays = model.coefficients(["abc", chat], [0], memories=0, as_arrays=True)
    assert arrays.firsts == (0, -rendered.start)


@pytest.mark.parametrize(
    ("texts", "given", "kind", "line"),
    [
        (["a", ""], {}, PromptError, r"^texts\[1\] cannot be read: the prompt is empty"),
        (
            ["a", "b", "c" * 400],
            {},
            PromptError,
            r"^texts\[2\] cannot be read: the prompt has 400 tokens, but",
        ),
        (["abc", "a"], {"at": 2}, PromptError, r"^texts\[1\] cannot be read: position 2 is not in the prompt"),
        ("abc", {"at": -4}, PromptError, "^position -4 is not in the prompt, which has positions 0 to 2"),
        ("", {}, PromptError, "^the prompt is empty"),
        ([], {}, OptionError, "is neither a text nor a list of texts"),
        ({"role": "user"}, {}, OptionError, "is neither a text nor a list of texts"),
        ("a", {"layers": [7]}, MemoryIdError, "layer 7 does not exist; the model has layers 0 to 1"),
        ("a", {"layers": []}, OptionError, "layers or memories names none"),
        ("a", {"memories": []}, OptionError, "layers or memories names none"),
        ("a", {"memories": "L1.M99"}, MemoryIdError, "L1.M99 is not in .*, whose layer 1 has memories 0-23"),
        ("a", {"memories": [99]}, MemoryIdError, "memory 99 is not in layer 0"),
        ("a", {"memories": [-1]}, MemoryIdError, "memory -1 is not in layer 0"),
        ("a", {"memories": "L9.M0"}, MemoryIdError, "layer 9 does not exist"),
        ("a", {"layers": "0-1"}, OptionError, "layers='0-1' is not possible; give a list of numbers"),
        ("a", {"layers": [0.5]}, OptionError, "layers=.* is not possible"),
        ("a", {"memories": [1.5]}, MemoryIdError, "1.5 does not name a memory; write one as L10.M222, or give"),
        ("a", {"memories": [None]}, MemoryIdError, "None does not name a memory"),
        ("a", {"memories": "M0"}, MemoryIdError, "'M0' does not name a memory"),
        ("a", {"memories": "L1.M0", "layers": [0]}, OptionError, r"L1.M0 is in none of the layers \[0\]"),
        ("a", {"at": "first"}, OptionError, "at='first' is not known; choose all, last"),
        ("a", {"at": True}, OptionError, "at=True is not known"),
        ("a", {"reduce": "min"}, OptionError, "reduce='min' is not known; choose mean, max, last"),
    ],
)
def test_bad_input_is_told_in_one_line(
    texts: Any, given: dict[str, Any], kind: type[Exception], line: str, small: ms.LanguageModel
) -> None:
    with pytest.raises(kind, match=line) as caught:
        small.coefficients(texts, **given)
    assert "\n" not in str(caught.value)
    if "memories" not in given:
        with pytest.raises(kind, match=line):
            small.capture(texts, "residual", **given)


@pytest.mark.parametrize("streams", ["logits", ["residual", "m"], []])
def test_a_stream_that_is_none(streams: Any, small: ms.LanguageModel) -> None:
    with pytest.raises(OptionError, match="is not a stream; the streams are residual, attention, ffn_input"):
        small.capture("a", streams)


def test_attention_that_cannot_be_told_is_refused() -> None:
    model = load_model(build_mixture("jamba"), tokenizer=PreTrainedTokenizerFast(tokenizer_object=byte_level()))
    with pytest.raises(ModelUnsupported, match=r"what attention adds in layer 0 of .* cannot be told from its block"):
        model.capture("abc", ["residual", "attention"])
    assert model.capture("abc", "attention", [1])["attention", 1].shape == (1, 3, 16)


def test_numbers_that_are_none_are_no_answer() -> None:
    network = build("llama")
    model = load_model(network, tokenizer=PreTrainedTokenizerFast(tokenizer_object=byte_level()))
    handle = network.model.layers[1].mlp.gate_proj.register_forward_hook(lambda *given: given[-1] * float("inf"))
    try:
        with pytest.raises((NotFinite, ms.errors.ModelChanged)):
            model.coefficients("abc")
    finally:
        handle.remove()
