"""What the questions beyond the paper, and the causal check, say of models that know nothing; and of planted effects.

`draw(kind, number)` makes one model (seeded by its number), mines the shared text with it, and gives every claim's
verdict: whether its whole interval lies above 0. Kinds:

untrained   a network as its class makes it: GPT-2 with GELU or ReLU, LLaMA (gated, untied), GPT-NeoX (parallel)
shuffled    the parts of a trained network mixed up: of every matrix the rows and the columns, each in an order of its
            own, matrices of one kind dealt to other layers, norms and biases shuffled: singular values stay
matched     a trained network, in which the thing asked about is exchanged for its control: next tokens dealt among
            prefixes; verdicts dealt among documents; own rank and control's swapped by a coin for each memory; one of
            the controls in the place of the memory that is checked
planted     effects built by hand (`plant`)

Not a test itself: tests/test_verdicts.py draws a few of each, runs/verdicts.sh as many as are asked for.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from mnemoscope import open_atlas
from mnemoscope.foundation.memory_names import MEMORISED_GIVEN, MEMORISED_TOKENS
from mnemoscope.mining import extending, mine
from mnemoscope.mining.lenses import lens_pass as lens_fits
from mnemoscope.mining.lenses import tuned
from mnemoscope.mining.lenses.lens_pass import fit_lenses
from mnemoscope.mining.passes.attention import AttentionPass
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.attention import eager_attention
from mnemoscope.questions.registry import question_module
from mnemoscope.runs.plan import MiningPlan
from mnemoscope.runs.run import Run
from mnemoscope.runs.workers.worker import Worker
from mnemoscope.tracing import causal

KINDS = ("untrained", "shuffled", "matched", "planted")
WORDS, HIDDEN, MEMORIES, LAYERS = 300, 32, 64, 2
DOCUMENTS, HELD_OUT, SENTENCES, LENGTH = 60, 40, 5, 13
CONFIGURATIONS = ("gelu", "relu", "llama", "neox")
BY_HEART = MEMORISED_TOKENS - MEMORISED_GIVEN
ATTENDED, THRESHOLD, SAID = 0.1, -3.0, 0.3
"""Of what is planted: how strongly attention copies, keys' bias, and how strongly values say their words."""
Answers = dict[str, bool]

CREDITED = (
    "attention_next_above_control",
    "ffn_next_above_control",
    "above_held_out",
    "memories_above_control",
    "key_agreement above_control",
    "above_control_plain",
    "above_control_ridge",
    "above_control_tuned",
    "lower_agreement_above_control_plain",
    "key_above_control_plain",
    "key_above_control_ridge",
    "causal check",
)
"""What a yes credits to training; the others are plain comparisons."""
PLAIN = ("ffn_above_attention", "ffn_moves_above_attention", "random_above_least")


def successor(word: Any) -> Any:
    """The word that follows another one three times of five."""
    return (word * 7 + 3) % WORDS


@cache
def documents() -> list[list[list[int]]]:
    """Sentences of words: rare and frequent ones, of a document's own topic, or a word's successor."""
    rng, found = np.random.default_rng(46), []
    often = 1 / np.arange(3, WORDS + 3)
    for _ in range(DOCUMENTS + HELD_OUT):
        topic = rng.choice(WORDS, 20, replace=False, p=often / often.sum())
        sentences = []
        for _ in range(SENTENCES):
            words = [int(rng.choice(topic))]
            while len(words) < LENGTH:
                words.append(successor(words[-1]) if rng.random() < 0.6 else int(rng.choice(topic)))
            sentences.append(words)
        found.append(sentences)
    return found


def _write(folder: Path, name: str, kept: list[list[list[int]]]) -> Path:
    lines = [json.dumps({"text": "\n".join(" ".join(f"w{word}" for word in one) for one in of)}) for of in kept]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


@cache
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = {"<s>": WORDS, **{f"w{word}": word for word in range(WORDS)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="<s>")


def network(kind: str, seed: int) -> Any:
    """A network of one configuration, untrained; embeddings and values as large as a little training makes them."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS + 1, "bos_token_id": WORDS, "eos_token_id": WORDS, "pad_token_id": WORDS}
    rest = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "initializer_range": 0.2}
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, **rest, intermediate_size=MEMORIES, max_position_embeddings=96)
        return transformers.LlamaForCausalLM(config).eval()
    if kind == "neox":
        config = transformers.GPTNeoXConfig(**sizes, **rest, intermediate_size=MEMORIES, max_position_embeddings=96)
        return transformers.GPTNeoXForCausalLM(config).eval()
    config = transformers.GPT2Config(
        **sizes,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=2,
        n_inner=MEMORIES,
        n_positions=96,
        initializer_range=0.2,
        activation_function="relu" if kind == "relu" else "gelu_new",
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(config).eval()


@cache
def trained(kind: str, seed: int) -> dict[str, torch.Tensor]:
    """The weights of a network that was trained on the mined documents until it knows much of them."""
    net = network(kind, seed)
    rows = torch.tensor([[WORDS, *chain.from_iterable(one)] for one in documents()[:DOCUMENTS]])
    steps = torch.optim.AdamW(net.parameters(), lr=5e-3)
    net.train()
    for step in range(200):
        chosen = rows[torch.arange(16) * 7 % DOCUMENTS + step % 4 if step % 2 else torch.randperm(DOCUMENTS)[:16]]
        net(input_ids=chosen % (WORDS + 1), labels=chosen % (WORDS + 1)).loss.backward()
        steps.step()
        steps.zero_grad()
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def mix_parts(net: Any, rng: np.random.Generator) -> None:
    """See `shuffled`."""
    shapes: dict[tuple[Any, ...], list[torch.nn.Parameter]] = {}
    for name, weight in net.named_parameters():
        kind = name.split(".")[-3:] if ".h." in name or ".layers." in name else [name]
        shapes.setdefault((*kind, *weight.shape), []).append(weight)
    with torch.no_grad():
        for own in shapes.values():
            dealt = [own[place].clone() for place in rng.permutation(len(own))]
            for weight, other in zip(own, dealt, strict=True):
                for axis in range(weight.dim()):
                    other = other.index_select(axis, torch.from_numpy(rng.permutation(weight.shape[axis])))
                weight.copy_(other)


def plant(net: Any, rng: np.random.Generator) -> None:
    """Into an untrained ReLU GPT-2: memories whose key is a word's embedding and whose value its successor's row of the
    head, and for each another one with its key, which says a word unlike it; attention that looks at the last word and
    says its successor, as far as a linear map can.
    """
    words = net.transformer.wte.weight
    every = torch.arange(WORDS)
    with torch.no_grad():
        net.transformer.wpe.weight.zero_()
        often = (3.0 + every).rsqrt()[:, None]
        cosines = torch.nn.functional.normalize(words[:WORDS]) @ torch.nn.functional.normalize(words[:WORDS]).T
        unlike = cosines.abs().argsort(1)
        seen = torch.nn.functional.layer_norm(words[:WORDS], (HIDDEN,))
        follows = torch.linalg.lstsq(often * seen, often * words[successor(every)]).solution
        for block in net.transformer.h:
            for part in range(3):
                block.attn.c_attn.weight[:, part * HIDDEN : (part + 1) * HIDDEN] = (2, 2, 1)[part] * torch.eye(HIDDEN)
            block.attn.c_proj.weight.copy_(ATTENDED * follows)
            chosen = rng.permutation(40)[: MEMORIES // 2].tolist()
            says = list(map(successor, chosen))
            says += [int(unlike[word, :5][int(rng.integers(5))]) for word in says]
            for memory, (word, said) in enumerate(zip(chosen * 2, says, strict=True)):
                block.mlp.c_fc.weight[:, memory] = words[word] / words[word].norm()
                block.mlp.c_fc.bias[memory] = THRESHOLD
                block.mlp.c_proj.weight[memory] = SAID * words[said] / words[said].norm()


def label(rows: pl.DataFrame, rng: np.random.Generator, heart: float | None = None) -> pl.DataFrame:
    """The table `memorised` with a random half of its documents held out; a share `heart` of all is known by heart."""
    count = rows.height
    rows = rows.with_columns(held_out=pl.Series(rng.permutation(count) < count // 2))
    if heart is None:
        return rows
    return rows.with_columns(agreed=pl.Series(np.where(rng.random(count) < heart, BY_HEART, 0), dtype=pl.Int32))


class Exchanged:
    """An atlas of which some tables are others: `changes` by name, each a function of table and layer."""

    def __init__(self, atlas: Any, changes: dict[str, Callable[[pl.DataFrame, int | None], pl.DataFrame]]) -> None:
        self._atlas, self._changes = atlas, changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._atlas, name)

    def table(self, name: str, *, layer: int | None = None, columns: Any = None) -> pl.DataFrame:
        found = self._atlas.table(name, layer=layer, columns=columns)
        return self._changes[name](found, layer) if name in self._changes else found


@contextmanager
def _few_steps() -> Iterator[None]:
    """A tuned lens of few steps: it begins as the ridge one."""
    before = tuned.STEPS
    tuned.STEPS = lens_fits.STEPS = 10
    try:
        yield
    finally:
        tuned.STEPS = lens_fits.STEPS = before


def mined(net: Any, folder: Path, *, seed: int) -> tuple[LanguageModel, Any]:
    """The shared text mined with a network, with all optional tables."""
    text, held_out = (
        _write(folder, name, kept)
        for name, kept in (("text.jsonl", documents()[:DOCUMENTS]), ("held.jsonl", documents()[DOCUMENTS:]))
    )
    model = load_model(net, tokenizer=tokenizer())
    options: dict[str, Any] = {"split": "line", "prefixes": 400, "removals": 0, "triggers": 25, "seed": seed}
    out = mine(model, text, out=folder / "atlas", validation=held_out, progress=False, **options)
    return model, open_atlas(out)


def says_yes(table: pl.DataFrame, name: str) -> bool:
    """Whether the total of that name is above 0 with its whole interval."""
    rows = table.filter(pl.col("layer").is_null(), pl.col("name") == name)
    return bool(rows.height and (rows["low"][0] or -1.0) > 0)


def ask(atlas: Any, *, width: bool = False) -> Answers:
    """The verdicts of all questions beyond the paper."""
    found: Answers = {}
    names = {
        "attention_share": CREDITED[:2] + PLAIN[:2],
        "memorised": CREDITED[2:4],
        "key_agreement": ("above_control",),
        "lenses": CREDITED[5:11],
        **({"width": PLAIN[2:]} if width else {}),
    }
    for question, own in names.items():
        table = question_module(question).answer(atlas)
        for name in own:
            key = f"{question} {name}" if question == "key_agreement" else name
            found[key] = says_yes(table, name)
    return found


def check(
    model: LanguageModel, atlas: Any, rng: np.random.Generator, *, exchange: bool = False, planted: bool = False
) -> bool:
    """Whether the causal check of a random memory that fires says yes: what comes next is less likely without it.

    With `planted` at least twelve of its triggers are followed by what its value says first.
    """
    layer = int(rng.choice(atlas.layers))
    triggers = atlas.table("triggers", layer=layer).filter(pl.col("sign") == 1, pl.col("next_token").is_not_null())
    if planted:
        said = atlas.table("values", layer=layer).select("memory", said=pl.col("top_tokens").list.first())
        triggers = triggers.join(said, on="memory").filter(pl.col("next_token") == pl.col("said"))
    often = triggers.group_by("memory").len().filter(pl.col("len") >= (12 if planted else 10))["memory"].sort()
    summarise = causal.summarise_changes

    def of_controls(changes: Any, stronger: Any, *, seed: int) -> pl.DataFrame:
        """One control of each trigger is asked about, beside the others."""
        return summarise(changes[:, 1:], stronger[:, 1:] / stronger[:, :1], seed=seed)

    memory = f"L{layer}.M{int(rng.choice(often.to_numpy()))}"
    with patch.object(causal, "summarise_changes", of_controls if exchange else summarise):
        found = causal.causal_check(model, atlas, memory, seed=int(rng.integers(1000)))
    row = found.table.filter(measure="next_token_log_probability", of="difference").to_dicts()[0]
    return row["high"] is not None and row["high"] < 0


def _extend(model: LanguageModel, atlas: Any, *, width: bool) -> Any:
    with _few_steps():
        fit_lenses(atlas, model)
    extending.extend(atlas.path, model, ["memorised", *(["width"] if width else [])])
    return open_atlas(atlas.path)


def _swap(first: str, second: str, rng: np.random.Generator) -> Callable[[pl.DataFrame, int | None], pl.DataFrame]:
    """Exchanges two columns in a random half of the rows."""

    def swap(rows: pl.DataFrame, layer: int | None) -> pl.DataFrame:
        coin = pl.Series(rng.random(rows.height) < 0.5)
        one, two = pl.col(first), pl.col(second)
        changed = {first: pl.when(coin).then(two).otherwise(one), second: pl.when(coin).then(one).otherwise(two)}
        return rows.with_columns(**changed)

    return swap


def _dealt_attention(model: LanguageModel, atlas: Any, rng: np.random.Generator) -> pl.DataFrame:
    """The table `attention` as if every prefix were followed by another one's next token."""
    plan = MiningPlan.from_document(atlas.manifest.plan, atlas.path)
    prefixes = atlas.table("prefixes").sort("prefix")
    following = prefixes["next_token"].gather(rng.permutation(prefixes.height))
    with tempfile.TemporaryDirectory(prefix="verdicts-") as folder:
        (Path(folder) / "sentences").symlink_to(atlas.path.absolute() / "sentences")
        prefixes.with_columns(following).write_parquet(Path(folder) / "prefixes.parquet")
        asked = AttentionPass(Worker(Run(directory=Path(folder), plan=plan), model))
        with eager_attention(model):
            for number in range(len(asked.steps.cuts)):
                asked.steps.take(number)
    columns = asked.columns()
    names = [name for name in columns if name.endswith("next") or name == "other_next_token"]
    kept = pl.DataFrame({name: np.asarray(columns[name]) for name in names})
    following = np.repeat(following.to_numpy(), len(plan.layers))
    return atlas.table("attention").with_columns(**kept.to_dict(), next_dealt=pl.Series(following))


class Shared(ExitStack):
    """What draws share, and the folders that go when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.mined: dict[tuple[int, int], tuple[Any, Any]] = {}


def draw_matched(number: int, shared: Shared) -> Answers:
    """Twenty draws share a network, of which each exchanges anew."""
    rng = np.random.default_rng((number, 2))
    kind, group = CONFIGURATIONS[number % 4], number // 80
    if (number % 4, group) not in shared.mined:
        folder = shared.enter_context(tempfile.TemporaryDirectory(prefix="verdicts-"))
        net = network(kind, group)
        net.load_state_dict(trained(kind, group))
        model, atlas = mined(net, Path(folder), seed=group)
        shared.mined[number % 4, group] = model, _extend(model, atlas, width=False)
    model, atlas = shared.mined[number % 4, group]
    attention = _dealt_attention(model, atlas, rng)
    dealt = attention.group_by("prefix").agg(pl.col("next_dealt").first())
    coin = int(rng.integers(2**31))
    exchanged = Exchanged(
        atlas,
        {
            "attention": lambda rows, layer: attention.drop("next_dealt"),
            "prefixes": lambda rows, layer: (
                rows.join(dealt, on="prefix", how="left")
                .with_columns(next_token=pl.coalesce("next_dealt", "next_token").cast(pl.Int32))
                .drop("next_dealt")
            ),
            "memorised": lambda rows, layer: label(rows, rng, rng.uniform(0.05, 0.5)),
            "roles": lambda rows, layer: _swap("text_rank", "shuffled_rank", np.random.default_rng((coin, layer)))(
                rows, 0
            ),
            "key_readings": lambda rows, layer: _swap(
                "text_rank", "shuffled_rank", np.random.default_rng((coin, layer, 1))
            )(rows, 0),
            "readings": lambda rows, layer: _swap(
                "target_rank", "control_rank", np.random.default_rng((coin, layer, 2))
            )(rows, 0),
        },
    )
    found = {name: yes for name, yes in ask(exchanged).items() if name in CREDITED}
    return found | {"causal check": check(model, atlas, rng, exchange=True)}


def draw(kind: str, number: int, shared: Shared, *, width: bool = True) -> Answers:
    """Every verdict of one model. Without `width` that table is not made."""
    if kind == "matched":
        return draw_matched(number, shared)
    rng = np.random.default_rng((number, KINDS.index(kind)))
    shape = "relu" if kind == "planted" else CONFIGURATIONS[number % 4]
    net = network(shape, 1_000 + number)
    if kind == "shuffled":
        net.load_state_dict(trained(shape, number // 80))
        mix_parts(net, rng)
    if kind == "planted":
        plant(net, rng)
    width = width and kind != "planted"
    with tempfile.TemporaryDirectory(prefix="verdicts-") as folder:
        model, atlas = mined(net, Path(folder), seed=number)
        atlas = _extend(model, atlas, width=width)
        if kind == "planted":
            return _planted(model, atlas, rng)
        held = Exchanged(atlas, {"memorised": lambda rows, layer: label(rows, np.random.default_rng(number))})
        return ask(held, width=width) | {"causal check": check(model, atlas, rng)}


def _planted(model: LanguageModel, atlas: Any, rng: np.random.Generator) -> Answers:
    """As `ask`; a quarter of the mined documents is known by heart, and one memory of four fires nowhere else."""
    rows = label(atlas.table("memorised"), rng, 0.25)
    rows = rows.with_columns(agreed=pl.when("held_out").then(0).otherwise("agreed").cast(pl.Int32))
    inside = rows.filter(pl.col("agreed") == BY_HEART)["sentences"].explode().to_list()

    def gather(triggers: pl.DataFrame, layer: int | None) -> pl.DataFrame:
        picked = pl.Series(rng.choice(inside, triggers.height), dtype=pl.Int64)
        there = pl.when(pl.col("memory") % 4 == 0).then(picked).otherwise(pl.col("sentence"))
        return triggers.with_columns(sentence=there)

    found = ask(Exchanged(atlas, {"memorised": lambda *_: rows, "triggers": gather}))
    found = {name: yes for name, yes in found.items() if name in CREDITED}
    return found | {"causal check": check(model, atlas, rng, planted=True)}


def main(draws: int, kept: Path, kinds: tuple[str, ...] = KINDS) -> None:
    """Draws what `kept` (one JSON line a draw) lacks, and prints the table."""
    torch.set_num_threads(1)
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    have = {(one["kind"], one["number"]) for one in done}
    with Shared() as shared:
        for number in range(draws):
            for kind in kinds:
                if (kind, number) not in have:
                    one = {"kind": kind, "number": number, "yes": draw(kind, number, shared)}
                    with kept.open("a") as file:
                        file.write(json.dumps(one) + "\n")
                    done.append(one)
    print("| claim |", " | ".join(kinds), "|\n|---|" + "---|" * len(kinds))
    for name in (*CREDITED, *PLAIN):
        cells = []
        for kind in kinds:
            own = [one["yes"][name] for one in done if one["kind"] == kind and name in one["yes"]]
            cells.append(f"{sum(own)} of {len(own)}" if own else "-")
        print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3].split(",")) if sys.argv[3:] else KINDS)
