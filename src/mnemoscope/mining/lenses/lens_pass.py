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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import write_beside
from mnemoscope.atlas.folder import LENSES as FOLDER
from mnemoscope.atlas.schema import LENS_TABLES
from mnemoscope.errors import AtlasDamaged, AtlasUnfinished, ModelDiffers, ModelUnsupported
from mnemoscope.foundation.budget import BUDGET
from mnemoscope.foundation.files import refuse_hub, write_bytes
from mnemoscope.foundation.options.mining_options import LENS_KINDS as LENSES
from mnemoscope.foundation.options.mining_options import LensOptions
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.foundation.progress import Checkpoints, Progress, report_to
from mnemoscope.foundation.words import KEYS_ONLY
from mnemoscope.mining.extending import beside, cover, files_of, load_mined
from mnemoscope.mining.lenses.readouts import PLAIN, ReadoutPass, key_reading_columns, reading_columns, targets_of
from mnemoscope.mining.lenses.ridge import RidgeFit, fit_ridge
from mnemoscope.mining.lenses.tuned import STEPS, TunedFit
from mnemoscope.mining.passes.prefix_pass import pass_stages, planned_pass, run_blocks
from mnemoscope.mining.passes.vectors.key_triggers import KeyTriggers
from mnemoscope.mining.passes.vectors.roles import RolePass
from mnemoscope.mining.passes.vectors.values import ValuePass
from mnemoscope.mining.steps import join_pieces
from mnemoscope.mining.text.batches import Ints
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pack, pad, texts_in
from mnemoscope.models.forward.hooks import Block
from mnemoscope.models.object_state import check_unchanged, hold_model
from mnemoscope.models.readout.read_directions import input_embeddings
from mnemoscope.models.readout.translators import Lens, Translator
from mnemoscope.runs.driver import Driver
from mnemoscope.runs.plan import MiningPlan
from mnemoscope.runs.run import Run, hold
from mnemoscope.runs.workers.worker import Stage, Worker

WORDS = "words"
"""The translator in the other direction, fitted with ridge: from the words' embeddings to each layer's stream."""
_FILES = (*LENSES, WORDS)
_SAYS = "mnemoscope"
"""The entry of a file's metadata with the facts of the lens, as JSON."""
_JUDGED = 10
"""One document of so many is not fitted but chooses the penalty."""


@dataclass(frozen=True)
class LensBatch:
    """Sentences of one forward, and whether they choose the penalty."""

    rows: list[Ints]
    judged: bool
    sources: list[Ints] | None


class LensText:
    """The batches of an atlas's text, at most `most` tokens or one sentence, chosen by the seed. No batch has sentences
    on both sides of a boundary. Raises AtlasUnfinished if the stored mined sentences are of fewer than two documents.
    """

    def __init__(self, directory: Path, *, area: int, seed: int, most: int, boundaries: Sequence[int] = ()) -> None:
        paths = sorted((directory / "sentences").glob("part-*.parquet"))
        pairs = "source_tokens" in pl.read_parquet_schema(paths[0])
        names = ["document", "tokens", "held_out", *(["source_tokens"] if pairs else [])]
        table = pl.read_parquet(paths, columns=names, glob=False)
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
        sources = table["source_tokens"].gather(kept) if pairs else None
        beside = np.zeros_like(sizes) if sources is None else sources.list.len().to_numpy().astype(np.int64)
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
        by_length = np.lexsort((beside, sizes, judged))
        apart = judged * (1 + len(boundaries)) + np.searchsorted(boundaries, sizes)
        apart = apart * (1 + beside.max()) + beside
        cuts = pack(sizes[by_length] + 1, area=area, rows=BUDGET.lens_sentences, apart=apart[by_length])
        batches = []
        for cut in cuts:
            places = by_length[cut]
            rows = [tokens[int(place)].to_numpy().astype(np.int64) for place in places]
            given = None if sources is None else [sources[int(place)].to_numpy().astype(np.int64) for place in places]
            batches.append(LensBatch(rows, bool(judged[places[0]]), given))
        self.batches = [batches[place] for place in np.random.default_rng((seed, 11)).permutation(len(batches))]

    def facts(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "batches": len(self.batches)}


def read_streams(model: LanguageModel, batch: LensBatch, layers: tuple[int, ...]) -> tuple[dict[int, Tensor], Tensor]:
    """The stream that enters every layer, and the final one, `[position, hidden]` each, at the rows' own tokens."""
    ids, lengths = pad(batch.rows, model, batch.sources), np.array([len(row) for row in batch.rows])
    inside = torch.from_numpy(model.reading.inside(lengths, texts_in(ids, model.reading).shape[1]))
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
    side: str | None = None,
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
        side: The half of an encoder-decoder that is read; of an encoder the keys alone: decoder (None) or encoder.
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
    refuse_hub(opened.path)
    if opened.manifest.keys_only:
        raise ModelUnsupported(KEYS_ONLY)
    if opened.manifest.part is None and opened.table("prefixes").is_empty():
        raise AtlasUnfinished(f"{opened.path} has no validation prefixes, on which a lens is judged; mine more text")
    there = [kind for kind in _FILES if not (force and kind in kinds)]
    lenses = {kind: lens for kind in there if (lens := read_lens(opened, kind)) is not None}
    if not {"ridge", WORDS} <= lenses.keys():  # one reading of the text makes both
        lenses = {kind: lens for kind, lens in lenses.items() if kind not in ("ridge", WORDS)}
    # A tuned lens begins as the ridge one.
    wanted = [kind for kind in LENSES if (kind in kinds or "tuned" in kinds) and kind not in lenses]
    plan = MiningPlan.from_document(opened.manifest["plan"], opened.path)
    with report_to(progress) as report:
        loaded = load_mined(opened, plan, model, device=device, opening=opening, progress=report)
        with hold_model(loaded), hold(write_beside(opened)):
            of = f" lenses {wanted} of {max_tokens} tokens, beside {[opened.hashes[_path(kind)] for kind in lenses]}"
            run = beside(opened, plan, of=of, checkpoint_every=checkpoint_every, progress=report)
            fit = LensFit(wanted, lenses, most=max_tokens)
            Driver(run, worker=Worker(run, loaded)).drive(fit.stages())
            check_unchanged(loaded)
            said, every = run.read_note("readouts"), fit.lenses(run)
            tables = [path for name in LENS_TABLES for path in files_of(opened, name)]
            cover(opened, [*tables, *map(_path, every)])
    return FittedLenses(
        tuple(kind for kind in LENSES if kind in every),
        tuple(wanted),
        {name: tuple(layers) for name, layers in said["plain_layers"].items()},
        {name: tuple(losses) for name, losses in said["losses"].items()},
    )


class LensFit:
    """The stages that fit the lenses `wanted` beside those of the atlas, judge all of them, and read through them."""

    def __init__(self, wanted: Sequence[str], there: Mapping[str, Lens], *, most: int) -> None:
        self._wanted, self._there, self._most = wanted, there, most

    def stages(self) -> list[Stage]:
        fits = Stage("lens ridge", "run", self.fit_ridge), Stage("lens tuned", "run", self.fit_tuned)
        pieces, join = pass_stages("readouts", self.readout_pass)
        return [
            *(stage for stage in fits if stage.name.removeprefix("lens ") in self._wanted),
            pieces,
            replace(join, make=self.judge),
            Stage("readings", "layer", self.read_layer),
        ]

    def fit_ridge(self, worker: Worker, _: int) -> None:
        """Fits translators from every layer's stream to the final one, and from the words' embeddings to every
        layer's.
        """
        text, fit, layers = self._text(worker), RidgeFit(worker.model, worker.plan.layers), worker.plan.layers

        def take(number: int) -> None:
            batch = text.batches[number]
            streams, final = read_streams(worker.model, batch, layers)
            fit.add(np.concatenate(batch.rows), streams, final, judged=batch.judged)

        train(worker, "lens ridge", take, steps=len(text.batches), state=fit.state())
        for kind, sums in (("ridge", fit.to_final), (WORDS, fit.from_words)):
            fitted = {layer: fit_ridge(*pair) for layer, pair in sums.items()}
            facts = text.facts() | {"penalties": {str(layer): penalty for layer, (_, penalty) in fitted.items()}}
            worker.save(_work_name(kind), _write_lens({layer: lens for layer, (lens, _) in fitted.items()}, facts))

    def fit_tuned(self, worker: Worker, _: int) -> None:
        text, layers = self._text(worker), worker.plan.layers
        fit = TunedFit(worker.model, self.lenses(worker.run)["ridge"], seed=worker.plan.seed)

        def take(number: int) -> None:
            streams, final = read_streams(worker.model, text.batches[number % len(text.batches)], layers)
            fit.step(number, streams, final)

        train(worker, "lens tuned", take, steps=STEPS, state=fit.state())
        worker.save(_work_name("tuned"), _write_lens(fit.translators(), text.facts() | fit.facts()))

    def lenses(self, run: Run) -> dict[str, Lens]:
        """Those of the atlas and those fitted so far, by kind."""
        fitted = {kind: run.work / _work_name(kind) for kind in _FILES}
        known = {kind: _read_lens(path)[0] for kind, path in fitted.items() if kind in self._fits and path.is_file()}
        known = {**self._there, **known}
        return {kind: known[kind] for kind in _FILES if kind in known}

    @property
    def _fits(self) -> list[str]:
        return [*self._wanted, *([WORDS] if "ridge" in self._wanted else [])]

    def _text(self, worker: Worker) -> LensText:
        edges = [length - worker.model.reading.framing for length in worker.model.boundaries]
        area, seed = worker.plan.batch_tokens, worker.plan.seed
        return LensText(worker.directory, area=area, seed=seed, most=self._most, boundaries=edges)

    def readout_pass(self, worker: Worker) -> ReadoutPass:
        lenses = self.lenses(worker.run)
        return ReadoutPass(worker, {PLAIN: {}, **{kind: lenses[kind] for kind in LENSES if kind in lenses}})

    def judge(self, worker: Worker, _: int) -> None:
        """Joins the readouts, and writes the lenses that were fitted as they are kept."""
        asked = planned_pass(worker, self.readout_pass)
        join_pieces(worker.run.work, asked.steps)
        plain, losses = asked.fall_back(), asked.losses()
        asked.write()
        for kind in self._fits:
            lens, facts = _read_lens(worker.run.work / _work_name(kind))
            kept = {**lens, **dict.fromkeys(plain.get(kind, ()), Translator.identity(worker.model.sizes.hidden))}
            said = {
                "lens": kind,
                "model": worker.plan.model_fingerprint,
                "plan": worker.plan.hash(),
                "facts": {**facts, "plain_layers": list(plain.get(kind, ()))},
            }
            write_bytes(worker.directory / _path(kind), _write_lens(kept, said))
            worker.made.append(worker.directory / _path(kind))
        worker.note(
            "readouts", {"plain_layers": plain, "losses": {name: each.tolist() for name, each in losses.items()}}
        )

    def read_layer(self, worker: Worker, layer: int) -> None:
        """Writes what the layer's values and keys are through every lens."""
        kept, moved, values, roles, triggers = worker.keep("readings", lambda: self._readers(worker))
        worker.write(
            "readings", reading_columns(values, layer, targets_of(worker, layer), kept, seed=worker.plan.seed), layer
        )
        words = input_embeddings(worker.model)
        ridge = RolePass(worker.model, None if words is None else moved[layer](words), triggers)
        worker.write("key_readings", key_reading_columns(worker, {PLAIN: roles, "ridge": ridge}, layer), layer)

    def _readers(self, worker: Worker) -> tuple[dict[str, Lens], Lens, ValuePass, RolePass, KeyTriggers]:
        """The lenses as they are kept, that of the words, and what reads values and keys."""
        kinds = [kind for kind in _FILES if kind in (*self._there, *self._fits)]
        lenses = {kind: _read_lens(worker.directory / _path(kind))[0] for kind in kinds}
        moved, triggers = lenses.pop(WORDS), KeyTriggers(worker.model, worker.directory, worker.plan)
        roles = RolePass(worker.model, input_embeddings(worker.model), triggers)
        return {PLAIN: {}, **lenses}, moved, ValuePass(worker.model), roles, triggers


def train(worker: Worker, stage: str, take: Callable[[int], None], *, steps: int, state: Mapping[str, Tensor]) -> None:
    """Takes every step that no earlier run has taken; saves `state`, the tensors that steps change in place."""
    checkpoint, done = worker.run.work / f"{stage.replace(' ', '-')}.safetensors", 0
    if worker.record.finds(checkpoint, worker.progress):
        saved = load_file(checkpoint)
        done = int(saved.pop("done")[0])
        with torch.no_grad():
            for name, tensor in saved.items():
                state[name].copy_(tensor)

    def step(number: int) -> None:
        nonlocal done
        worker.progress(stage, number, steps, "steps")
        take(number)
        done = number + 1

    def save_state() -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        data = save({**tensors, "done": torch.tensor([done])})
        worker.record.add_state(data)
        write_bytes(checkpoint, data)

    with Checkpoints(save_state, every=worker.run.checkpoint_every) as checkpoints:
        for number in range(done, steps):
            step(number)
            checkpoints.step_done()
    save_state()
    worker.progress(stage, steps, steps, "steps")


def _path(kind: str) -> str:
    return f"{FOLDER}/{kind}.safetensors"


def _work_name(kind: str) -> str:
    """The file in the work folder of a lens that is fitted and not judged yet."""
    return f"fitted-{kind}.safetensors"


def _write_lens(lens: Lens, said: Mapping[str, Any]) -> bytes:
    tensors = {name: torch.stack([getattr(lens[layer], name) for layer in sorted(lens)]) for name in ("weight", "bias")}
    # One entry: the file would hold several in any order.
    return save(tensors, {_SAYS: json.dumps({**said, "layers": sorted(lens)}, sort_keys=True)})


def _read_lens(path: Path) -> tuple[Lens, dict[str, Any]]:
    """A lens, by layer, and what its file says of it."""
    with safe_open(path, "pt") as file:
        said = json.loads((file.metadata() or {})[_SAYS])
        weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
    return {layer: Translator(*one) for layer, *one in zip(said.pop("layers"), weight, bias, strict=False)}, said


def read_lens(atlas: Atlas, kind: str) -> Lens | None:
    """A lens of this atlas, by layer; None if there is none."""
    if _path(kind) not in atlas.hashes:
        return None
    where = atlas.local(_path(kind))
    try:
        atlas.checked_file(_path(kind))
        lens, said = _read_lens(where)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise AtlasDamaged(f"{where} does not hold a lens ({error}); fit it again with --force") from error
    if said.get("model") != atlas.manifest.model.fingerprint or said.get("plan") != atlas.manifest.plan_hash:
        raise ModelDiffers(f"{where} was fitted for another model or atlas; fit it again with --force")
    if [*atlas.layers] != [*lens] or not all(one.weight.isfinite().all() for one in lens.values()):
        raise AtlasDamaged(f"{where} does not hold a lens of this atlas's layers; fit it again with --force")
    return lens
