"""`mnemoscope lens`: translators from every layer to the head, fitted on an atlas's text, and what is read through
them.

A translator of a layer takes the stream that its feed-forward layer reads; the layer's update, output and values are
read through it, too. A layer at which a lens is no better at the validation prefixes' next tokens than the plain
readout keeps the plain one. Lenses are fitted on the stored mined sentences in a fixed order, and judged on held-out
ones, as all readouts are.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import write_beside
from mnemoscope.atlas.folder import LENSES as FOLDER
from mnemoscope.atlas.schema import LENS_TABLES
from mnemoscope.errors import AtlasDamaged, AtlasUnfinished, ModelDiffers
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.files import write_bytes
from mnemoscope.foundation.options.mining_options import LENS_KINDS as LENSES
from mnemoscope.foundation.options.mining_options import LensOptions
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.mining.extending import cover, files_of, load_mined
from mnemoscope.mining.lenses.readouts import (
    PLAIN,
    Lenses,
    ReadoutPass,
    key_reading_columns,
    reading_columns,
    targets_of,
)
from mnemoscope.mining.lenses.ridge import RidgeFit
from mnemoscope.mining.lenses.tuned import STEPS, TunedFit
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.prefix_pass import run_blocks
from mnemoscope.mining.passes.vectors.key_triggers import KeyTriggers
from mnemoscope.mining.passes.vectors.roles import RolePass
from mnemoscope.mining.passes.vectors.values import ValuePass
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.run_folder import hold
from mnemoscope.mining.steps import RunContext, digest, join_pieces, read_saved, run_checkpointed, run_piece
from mnemoscope.mining.text.batches import Ints
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pack, pad
from mnemoscope.models.forward.hooks import Block
from mnemoscope.models.object_state import check_unchanged, hold_model
from mnemoscope.models.readout.read_directions import input_embeddings
from mnemoscope.models.readout.translators import Lens, Translator

WORDS = "words"
"""The translator in the other direction, fitted with ridge: from the words' embeddings to each layer's stream."""
_FILES = (*LENSES, WORDS)
_SAYS = "mnemoscope"
"""The entry of a file's metadata with the facts of the lens, as JSON."""
Facts = dict[str, dict[str, Any]]
"""What a lens's file states of its fit, by kind."""
_JUDGED = 10
"""One document of so many is not fitted but chooses the penalty."""


@dataclass(frozen=True)
class LensBatch:
    """Sentences of one forward, and whether they choose the penalty."""

    rows: list[Ints]
    judged: bool


class LensText:
    """The batches of an atlas's text, at most `most` tokens or one sentence, chosen by the seed. No batch has sentences
    on both sides of a boundary. Raises AtlasUnfinished if the stored mined sentences are of fewer than two documents.
    """

    def __init__(self, directory: Path, *, area: int, seed: int, most: int, boundaries: Sequence[int] = ()) -> None:
        paths = sorted((directory / "sentences").glob("part-*.parquet"))
        table = pl.read_parquet(paths, columns=["document", "tokens", "held_out"], glob=False)
        table = table.filter(~pl.col("held_out"), pl.col("tokens").list.len() > 1)
        if table.is_empty():
            raise AtlasUnfinished(
                f"{directory} stores no mined sentence of two tokens that a lens could be fitted on; mine more text"
            )
        order = np.random.default_rng((seed, 10)).permutation(table.height)
        lengths = table["tokens"].list.len().to_numpy().astype(np.int64)
        within = int(np.searchsorted(np.cumsum(lengths[order]), most, side="right"))
        kept = np.sort(order[: max(1, within)])
        documents, sizes = table["document"].to_numpy()[kept], lengths[kept]
        tokens = table["tokens"].gather(kept)
        self.tokens = int(sizes.sum())
        # The rule must not depend on which documents are stored, and neighbours in number are neighbours in the text.
        lot = documents * 2654435761 % 2**32
        judged = lot % _JUDGED == 0
        if judged.all() or not judged.any():  # one of the few documents there are chooses, the others are fitted
            judged = lot == lot.min()
        if judged.all():
            raise AtlasUnfinished(
                f"the mined sentences of {directory} for fitting a lens come from one document, which cannot also "
                "judge it, so nothing is stored; mine more documents, or raise --max-tokens"
            )
        by_length = np.lexsort((sizes, judged))
        apart = judged * (1 + len(boundaries)) + np.searchsorted(boundaries, sizes)
        cuts = pack(sizes[by_length] + 1, area=area, rows=BUDGET.lens_sentences, apart=apart[by_length])
        batches = []
        for cut in cuts:
            places = by_length[cut]
            rows = [tokens[int(place)].to_numpy().astype(np.int64) for place in places]
            batches.append(LensBatch(rows, bool(judged[places[0]])))
        self.batches = [batches[place] for place in np.random.default_rng((seed, 11)).permutation(len(batches))]

    def facts(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "batches": len(self.batches)}


def read_streams(model: LanguageModel, rows: list[Ints], layers: tuple[int, ...]) -> tuple[dict[int, Tensor], Tensor]:
    """The stream that enters every layer, and the final one, `[position, hidden]` each, at the rows' own tokens."""
    ids = pad(rows, model)
    inside = torch.from_numpy(model.reading.inside(np.array([len(row) for row in rows]), ids.shape[1]))
    kept: dict[int, Tensor] = {}

    def keep(layer: int, block: Block) -> None:
        kept[layer] = block.residual[inside.to(block.residual.device)]

    with torch.inference_mode():
        final = run_blocks(model, ids, keep, layers)
        return kept, final[inside.to(final.device)]


@dataclass(frozen=True)
class FittedLenses:
    """The lenses of the atlas, those fitted by this call, and the layers that keep the plain readout."""

    lenses: tuple[str, ...]
    fitted: tuple[str, ...]
    plain_layers: Mapping[str, tuple[int, ...]]
    losses: Mapping[str, tuple[float, ...]]
    """Cross-entropy of the residual's readout with the next token, in nats, by lens (also `plain`) and mined layer."""


def fit_lenses(
    atlas: Atlas | str | os.PathLike[str],
    model: LanguageModel | str | None = None,
    kinds: Sequence[str] = ("ridge", "tuned"),
    *,
    max_tokens: int = 200_000,
    device: str = "auto",
    adapter: str | None = None,
    tokenizer: str | None = None,
    beginning: str | None = None,
    dequantize: bool = False,
    revision: str | None = None,
    dict: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    max_memory: str | None = None,
    checkpoint_every: float = 60.0,
    force: bool = False,
    progress: bool | Progress = True,
) -> FittedLenses:
    """Fits lenses in a finished atlas, and writes what is read through them; existing ones are kept. Omitted options of
    the model are as in the plan. Resumes an interrupted run.

    Raises OptionError for an unknown kind, ModelDiffers for another model, AtlasUnfinished for a part or an atlas
    without validation prefixes, AtlasBusy, Interrupted.

    Args:
        atlas: An atlas, or its folder.
        model: The model that was mined, loaded or by name; None: as mined.
        kinds: The lenses to fit: ridge, tuned.
        max_tokens: Fit on so many tokens of the atlas's sentences, at most.
        device: Such as cpu, cuda or cuda:1; auto: a graphics card if there is one.
        adapter: A PEFT adapter (LoRA and others) to put on the model: its folder or hub id.
        tokenizer: The tokenizer, if the model has none or needs another; ids: texts are token ids.
        beginning: The token before every sentence, if not the model's own; none: nothing.
        dequantize: Widen quantised weights at load.
        revision: The hub model's revision: a branch, tag or commit.
        dict: A fairseq model's dict.txt, if it is elsewhere.
        trust_remote_code: Run code that comes with the model.
        max_memory: Memory for weights: 2GiB, or 0=20GiB,cpu=60GiB; the rest of the model goes to disk.
        checkpoint_every: The most work that a sudden stop may lose, in seconds.
        force: Fit lenses again that the atlas has.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    opening = ModelOptions.of(locals())
    LensOptions.check(locals())
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(Path(atlas))
    if opened.manifest.part is None and opened.table("prefixes").is_empty():
        raise AtlasUnfinished(f"{opened.path} has no validation prefixes, on which a lens is judged; mine more text")
    kept = [kind for kind in _FILES if not (force and kind in kinds)]
    lenses = {kind: lens for kind in kept if (lens := read_lens(opened, kind)) is not None}
    if not {"ridge", WORDS} <= lenses.keys():  # one reading of the text makes both
        lenses = {kind: lens for kind, lens in lenses.items() if kind not in ("ridge", WORDS)}
    # A tuned lens begins as the ridge one.
    wanted = [kind for kind in LENSES if (kind in kinds or "tuned" in kinds) and kind not in lenses]
    plan = MiningPlan.from_document(opened.manifest["plan"], opened.path)
    with report_to(progress) as report:
        loaded = load_mined(opened, plan, model, device=device, opening=opening, progress=report)
        with hold_model(loaded), hold(write_beside(opened)):
            context = RunContext(opened.path, checkpoint_every, report)
            facts: Facts = {}
            for kind in wanted:
                text = LensText(
                    opened.path,
                    area=plan.batch_tokens,
                    seed=plan.seed,
                    most=max_tokens,
                    boundaries=[length - loaded.reading.offset for length in loaded.boundaries],
                )
                if kind == "ridge":
                    lenses |= _fit_ridge(context, loaded, plan, text, facts)
                else:
                    lenses[kind], facts[kind] = _fit_tuned(context, loaded, plan, text, lenses["ridge"])
            lenses = {kind: lenses[kind] for kind in _FILES if kind in lenses}
            check_unchanged(loaded)
            return _write(opened, context, loaded, plan, lenses, facts)


def _write(
    atlas: Atlas,
    context: RunContext,
    model: LanguageModel,
    plan: MiningPlan,
    lenses: dict[str, Lens],
    facts: Mapping[str, dict[str, Any]],
) -> FittedLenses:
    readouts: Lenses = {PLAIN: {}, **{kind: lenses[kind] for kind in LENSES if kind in lenses}}
    run = MiningRun(context, model, plan)
    asked = ReadoutPass(run, readouts)
    run_piece(context, asked.steps)
    join_pieces(context, asked.steps)
    plain_layers = asked.fall_back()
    kept: dict[str, Lens] = {PLAIN: {}}
    files = [path for name in LENS_TABLES for path in files_of(atlas, name)]
    for kind, lens in lenses.items():
        identity, plain = Translator.identity(model.sizes.hidden), plain_layers.get(kind, ())
        kept[kind] = {layer: identity if layer in plain else each for layer, each in lens.items()}
        if kind in facts:
            path = atlas.path / FOLDER / f"{kind}.safetensors"
            layers = sorted(lens)
            tensors = {
                name: torch.stack([getattr(kept[kind][at], name) for at in layers]) for name in ("weight", "bias")
            }
            metadata = {
                "lens": kind,
                "model": atlas.manifest.model.fingerprint,
                "plan": atlas.manifest.plan_hash,
                "layers": layers,
                "facts": {**facts[kind], "plain_layers": list(plain)},
            }
            # One entry: the file would hold several in any order.
            write_bytes(path, save(tensors, {_SAYS: json.dumps(metadata, sort_keys=True)}))
        files.append(f"{FOLDER}/{kind}.safetensors")
    asked.write()
    words, moved = input_embeddings(model), kept.pop(WORDS)
    values, triggers = ValuePass(model), KeyTriggers(model, atlas.path, plan)
    roles = RolePass(model, words, triggers)
    maps = [part for lens in (*kept.values(), moved) for one in lens.values() for part in (one.weight, one.bias)]

    def read(number: int) -> None:
        layer = plan.layers[number]
        run.write("readings", reading_columns(values, layer, targets_of(run, layer), kept, seed=plan.seed), layer)
        ridge = RolePass(model, None if words is None else moved[layer](words), triggers)
        run.write("key_readings", key_reading_columns(run, {PLAIN: roles, "ridge": ridge}, layer), layer)

    _run(context, "readings", plan, (*kept, *maps), read, steps=len(plan.layers), unit="layers")
    cover(atlas, files, context)
    losses = {name: tuple(float(loss) for loss in each) for name, each in asked.losses().items()}
    there, fitted = (tuple(kind for kind in LENSES if kind in kinds) for kinds in (lenses, facts))
    return FittedLenses(there, fitted, plain_layers, losses)


def _fit_ridge(
    context: RunContext, model: LanguageModel, plan: MiningPlan, text: LensText, facts: Facts
) -> dict[str, Lens]:
    """The translators from every layer's stream to the final one, and from the words' embeddings to every layer's."""
    fit = RidgeFit(model, plan.layers)

    def take(number: int) -> None:
        batch = text.batches[number]
        streams, final = read_streams(model, batch.rows, plan.layers)
        fit.add(np.concatenate(batch.rows), streams, final, judged=batch.judged)

    inputs = (text.tokens, len(text.batches))
    _run(context, "lens ridge", plan, inputs, take, steps=len(text.batches), state=fit.state())
    lenses: dict[str, Lens] = {}
    for kind, layers in (("ridge", fit.to_final()), (WORDS, fit.from_words())):
        lenses[kind] = {layer: translator for layer, (translator, _) in layers.items()}
        facts[kind] = text.facts() | {"penalties": {str(layer): penalty for layer, (_, penalty) in layers.items()}}
    return lenses


def _fit_tuned(
    context: RunContext, model: LanguageModel, plan: MiningPlan, text: LensText, begin: Lens
) -> tuple[Lens, dict[str, Any]]:
    fit = TunedFit(model, begin, seed=plan.seed)

    def take(number: int) -> None:
        streams, final = read_streams(model, text.batches[number % len(text.batches)].rows, plan.layers)
        fit.step(number, streams, final)

    _run(context, "lens tuned", plan, (text.tokens, len(text.batches)), take, steps=STEPS, state=fit.state())
    return fit.translators(), text.facts() | fit.facts()


def _run(
    context: RunContext,
    stage: str,
    plan: MiningPlan,
    inputs: Sequence[object],
    take: Callable[[int], None],
    *,
    steps: int,
    state: Mapping[str, Tensor] = {},
    unit: str = "steps",
) -> None:
    """Takes every step that no earlier run of the same inputs has taken; `state` are the tensors that steps change in
    place.
    """
    checkpoint = context.work / f"{stage.replace(' ', '-')}-{plan.hash()[:16]}.safetensors"
    made_of = digest(stage, plan.hash(), *inputs, str([(name, tensor.shape) for name, tensor in state.items()]))
    saved = read_saved(checkpoint, made_of) or {"done": np.zeros(1, np.int64)}
    done = int(saved.pop("done")[0])
    with torch.no_grad():
        for name, array in saved.items():
            state[name].copy_(torch.from_numpy(array))

    def step(number: int) -> None:
        nonlocal done
        context.progress(stage, number, steps, unit)
        take(number)
        done = number + 1

    def save_state() -> None:
        arrays = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        write_bytes(checkpoint, save({**arrays, "done": torch.tensor([done])}, {"inputs": made_of}))

    run_checkpointed(context, range(done, steps), step, save_state)
    context.progress(stage, steps, steps, unit)
    context.end_stage(stage)


def read_lens(atlas: Atlas, kind: str) -> Lens | None:
    """A lens of this atlas, by layer; None if there is none."""
    path = f"{FOLDER}/{kind}.safetensors"
    if path not in atlas.hashes:
        return None
    where = atlas.local(path)
    try:
        atlas.checked_file(path)
        with safe_open(where, "pt") as file:
            metadata = json.loads((file.metadata() or {})[_SAYS])
            weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
            layers = metadata["layers"]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise AtlasDamaged(f"{where} does not hold a lens ({error}); fit it again with --force") from error
    if metadata.get("model") != atlas.manifest.model.fingerprint or metadata.get("plan") != atlas.manifest.plan_hash:
        raise ModelDiffers(f"{where} was fitted for another model or atlas; fit it again with --force")
    if list(atlas.layers) != layers or len(weight) != len(layers) or not np.isfinite(weight.numpy()).all():
        raise AtlasDamaged(f"{where} does not hold a lens of this atlas's layers; fit it again with --force")
    return {layer: Translator(weight[place], bias[place]) for place, layer in enumerate(layers)}
