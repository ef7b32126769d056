"""Rows of an atlas's tables, whose files are checked (files.py); what they hold is checked as it is read.

Every requested sentence must exist. Selecting a few ids reads only the row groups that can hold them, so one memory
costs the same in a large atlas.
"""

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from mnemoscope.atlas.experts import counted_through, with_names
from mnemoscope.atlas.files import AtlasFiles
from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.manifest import mined_from
from mnemoscope.atlas.schema import LENS_TABLES, OF_VALUES, TABLES, place, table_kind
from mnemoscope.errors import AtlasDamaged, AtlasUnfinished, ModelUnsupported, OptionError
from mnemoscope.foundation.formatting import runs
from mnemoscope.foundation.heap import ran_out
from mnemoscope.foundation.options.mining_options import TRIGGERS, TRIGGERS_OF_EXPERTS, MiningOptions
from mnemoscope.foundation.options.model_options import AS_USUAL
from mnemoscope.foundation.origin import made_by
from mnemoscope.foundation.processes import refuse_forked
from mnemoscope.foundation.words import KEYS_ONLY

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


class MadeFrame(pl.DataFrame):
    """A frame made of an atlas; what polars makes of it, such as a selection, is a plain frame."""

    made_by: Mapping[str, Any] | None = None


class Tables(AtlasFiles):
    """The tables of one atlas."""

    def made_by(self, **options: Any) -> dict[str, Any]:
        """The entry `made_by` of a result that is read off this atlas with these options."""
        model, seed = self.manifest.model.fingerprint, self.manifest.plan["seed"]
        return made_by(model=model, atlas=self.manifest_hash, options=options, seed=seed)

    def has(self, table: str, *, layer: int | None = None) -> bool:
        """Whether the table exists, of every mined layer if it has one file each and no `layer` is named; raises
        OptionError for an impossible one.
        """
        every = layer is None and table in TABLES and TABLES[table].numbered == "layer"
        layers = self.manifest.layers if every else (layer,)
        return all(self._paths_in_manifest(table, one) for one in layers)

    def paths(self, name: str, layer: int | None = None) -> list[str]:
        """The files of the table `name` (of one `layer`), relative to the atlas; raises like `table`."""
        files = self._paths_in_manifest(name, layer)
        if not files and (part := self.manifest.part):
            raise AtlasUnfinished(
                f"{self.path} is {part} and has no {name} yet; join all parts with `mnemoscope merge`"
            )
        if not files and self.manifest.keys_only and name in OF_VALUES:
            raise ModelUnsupported(f"{self.path} has no {name}: {KEYS_ONLY}")
        if not files:
            remedy = rebuild_command(self.path, name, self.manifest)
            raise AtlasUnfinished(f"{self.path} has no table {name}; make it with {remedy}")
        return files

    def _paths_in_manifest(self, name: str, layer: int | None) -> list[str]:
        kind = table_kind(name)
        if kind.numbered == "layer" and layer is None:
            raise OptionError(f"table {name} has one file per layer; say which, such as layer=0")
        if kind.numbered != "layer" and layer is not None:
            raise OptionError(f"table {name} is not divided by layer; leave the layer out")
        listed = self.hashes
        if kind.numbered == "part":
            parts = [path for path in listed if path.startswith(f"{name}/") and place(path)]
            return sorted(parts, key=lambda path: (len(path), path))
        path = kind.path(layer)
        present = path in listed if kind.mined or self.foreign else self.local(path).is_file()
        return [path] if present else []

    def table(self, name: str, *, layer: int | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """All rows of the table `name`, such as `triggers` (one file per layer) or `tokens`, with all columns or some.

        Without a `layer` a table with one file per layer is that of all layers, behind a column `layer`. Memories of
        experts are counted through their layer, with `expert` beside them (experts.py). Raises OptionError for an
        impossible table, AtlasUnfinished for one not made, AtlasDamaged.
        """
        if layer is None and table_kind(name).numbered == "layer":
            others = None if columns is None else [column for column in columns if column != "layer"]
            return pl.concat([_behind_layer(self.table(name, layer=one, columns=others), one) for one in self.layers])
        pieces = []
        for path in self.paths(name, layer):
            with self._open(name, path) as file:
                pieces.append(self._frame(name, file.read(columns=self._names(columns)), columns, layer))
        rows, expected = pl.concat(pieces), self.manifest.model.sizes.vocabulary
        if name in ("tokens", "vocabulary") and rows.height != expected:
            raise AtlasDamaged(f"{self.path}: table {name} has {rows.height} rows, and the model {expected} tokens")
        return rows

    def columns(self, name: str) -> pl.DataFrame:
        """What the columns of the table `name` are, a row each: `column`, `type`, `about` (meaning, unit). Raises
        OptionError for an impossible table.
        """
        kind = table_kind(name)
        columns = kind.by_name.values() if self.numberings else kind.of_all
        return pl.DataFrame([{"column": one.name, "type": one.type, "about": one.about} for one in columns])

    def scan(self, name: str, *, layer: int | None = None) -> pl.LazyFrame:
        """The table `name` (of one `layer`) as a lazy polars query; raises like `table`, but pages are not checked."""
        refuse_forked()
        if layer is None and table_kind(name).numbered == "layer":
            return pl.concat([_behind_layer(self.scan(name, layer=one), one) for one in self.layers])
        where = self.checked_file if self.foreign else self.local
        rows = pl.scan_parquet(list(map(where, self.paths(name, layer))), glob=False)
        return counted_through(rows, self.numberings, layer)

    def rows_where(
        self,
        name: str,
        layer: int | None = None,
        *,
        column: str,
        ids: Sequence[int],
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """The rows of the table `name` (of one `layer`) whose `column`, by which it is sorted, is one of `ids`; with
        some `columns` or all. Raises AtlasDamaged.
        """
        wanted = sorted(set(ids))
        pieces: list[pl.DataFrame] = []
        for path in self.paths(name, layer):
            with self._open(name, path) as file:
                groups = self._groups(file, column, wanted, layer)
                if not groups and pieces:
                    continue
                piece = self._frame(name, file.read_row_groups(groups, columns=self._names(columns)), columns, layer)
                pieces.append(piece.filter(pl.col(column).is_in(wanted)))
        return pl.concat(pieces)

    def sentences(self, ids: Sequence[int], *, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """The stored sentences with these `ids`, each once, in order of id, with some `columns` or all; raises
        AtlasDamaged for a missing one.
        """
        rows = self.rows_where("sentences", column="sentence", ids=ids, columns=columns)
        if rows.height < len(set(ids)) and self.has("random_sentences"):
            others = self.rows_where("random_sentences", column="sentence", ids=ids, columns=columns)
            rows = pl.concat([rows, others]).sort("sentence")
        if rows.height != len(set(ids)):
            if twice := rows["sentence"].filter(rows["sentence"].is_duplicated()).to_list():
                raise AtlasDamaged(f"{self.path}: sentence {twice[0]} is stored more than once; mine the atlas again")
            missing = sorted(set(ids) - set(rows["sentence"].to_list()))
            raise AtlasDamaged(f"{self.path}: sentence {missing[0]} is named by a table but not stored")
        return rows

    def prefixes(self, places: Sequence[tuple[int, int]], *, stored: pl.DataFrame | None = None) -> list[list[int]]:
        """The tokens of the prefixes that end at these places (sentence, position), in their order.

        `stored`: the sentences, if they were read before. Raises AtlasDamaged for a missing sentence, and for a
        position outside of one.
        """
        if stored is None:
            stored = self.sentences([sentence for sentence, _ in places], columns=["sentence", "tokens"])
        tokens = dict(zip(stored["sentence"].to_list(), stored["tokens"].to_list(), strict=True))
        for sentence, position in places:
            if not 0 <= position < len(tokens[sentence]):
                raise AtlasDamaged(
                    f"{self.path}: a table names position {position} of sentence {sentence},"
                    f" which has {len(tokens[sentence])} tokens"
                )
        return [tokens[sentence][: position + 1] for sentence, position in places]

    def _names(self, columns: Sequence[str] | None) -> list[str] | None:
        if columns is None:
            return None
        return with_names(columns) if self.numberings else list(columns)

    def _frame(self, name: str, table: Any, columns: Sequence[str] | None, layer: int | None) -> pl.DataFrame:
        if wrong := TABLES[name].content_error(table, self.manifest.model.sizes.vocabulary):
            raise AtlasDamaged(f"{self.path}: table {name}: {wrong}, which no run writes; mine the atlas again")
        frame = pl.from_arrow(table.replace_schema_metadata(None))
        assert isinstance(frame, pl.DataFrame)
        counted = counted_through(frame, self.numberings, layer)
        return counted if columns is None else counted.select(columns)

    def _groups(self, file: Any, column: str, ids: list[int], layer: int | None) -> list[int]:
        footer, place = file.metadata, file.schema_arrow.get_field_index
        numbering = self.numberings.get(layer) if layer is not None and column == "memory" else None
        if numbering is None or numbering.routed is None:
            return _groups_with(footer, place(column), ids)
        numbers = np.array(ids, np.int64)
        experts = np.unique(numbering.experts(numbers)).tolist()
        within = np.unique(numbering.within(numbers)).tolist()
        of_expert = _groups_with(footer, place("expert"), experts)
        of_memory = set(_groups_with(footer, place("memory"), within))
        return [group for group in of_expert if group in of_memory]

    @contextmanager
    def _open(self, name: str, path: str) -> Iterator[Any]:
        """The checked file; errors while it is read become AtlasDamaged."""
        refuse_forked()
        where = self.path / path
        try:
            with self.open_table(name, path) as file:
                yield file
        except FileNotFoundError:
            remedy = rebuild_command(self.path, name, self.manifest)
            raise self.damage(f"{where} is missing; restore it, or make it with {remedy}") from None
        except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
            if ran_out(error):
                raise MemoryError from error
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise self.damage(f"{where} cannot be read ({reason}); mine the atlas again or restore the file") from error


def _behind_layer(rows: Frame, layer: int) -> Frame:
    return rows.select(pl.lit(layer, pl.Int16).alias("layer"), pl.all())


def _groups_with(footer: Any, column: int, ids: list[int]) -> list[int]:
    """The row groups whose range of `column` holds one of the sorted ids; those without a known range, too."""
    every = ((g, footer.row_group(g).column(column).statistics) for g in range(footer.num_row_groups))
    return [
        group
        for group, held in every
        if held is None or not held.has_min_max or bisect_left(ids, held.min) < bisect_right(ids, held.max)
    ]


def patterns_command(directory: Path) -> str:
    return f"`mnemoscope analyze {shlex.quote(str(directory))} --patterns`"


def model_words(plan: Mapping[str, Any], *, otherwise: str = "MODEL") -> str:
    """The MODEL of a plan with its options, as words of a command line."""
    return shlex.join([str(plan.get("model", otherwise)), *AS_USUAL.or_planned(plan).words()])


def rebuild_command(directory: Path, table: str, manifest: Manifest) -> str:
    """The command, in backquotes, that makes a table of the atlas in `directory`."""
    if table in ("patterns", "labels"):
        return patterns_command(directory)
    model, folder = model_words(manifest.plan), shlex.quote(str(directory))
    if table in LENS_TABLES:
        return f"`mnemoscope lens {folder} --model {model}`"
    if TABLES[table].optional:
        return f"`mnemoscope extend {folder} --model {model} {table.removesuffix('_sentences')}`"
    return f"`{mine_command(directory, manifest, force=True)}`"


def mine_command(directory: Path, manifest: Manifest, **more: Any) -> str:
    """The command that mines the atlas into `directory`, with the display names of model and text."""
    if part := manifest.part:
        more["part"] = f"{part.index}/{part.of}"
    if list(manifest.layers) != list(range(len(manifest.model.sizes.memories))):
        more["layers"] = ",".join(map(str, manifest.layers))
    usual = TRIGGERS if manifest.model.sizes.experts is None else TRIGGERS_OF_EXPERTS
    return _mine_command(directory, manifest.plan, usual, more)


def resume_command(directory: Path, begun: Mapping[str, Any]) -> str:
    """The command that goes on with an unfinished run, by its `unfinished_plan`; says what hangs on model and text."""
    plan = begun["plan"] | mined_from(directory)
    more = {name: plan.get(name) for name in ("removals", "batch_tokens")}
    more |= {"layers": runs(plan.get("layers") or ()) or None, "part": "/".join(map(str, begun["part"] or ())) or None}
    return _mine_command(directory, plan, TRIGGERS, more)


def _mine_command(directory: Path, plan: Mapping[str, Any], triggers: int, more: dict[str, Any]) -> str:
    """With the options of a plan that are not the usual ones; those that model and text settle are in `more`."""
    usual = {"triggers": triggers, "per_sentence": str(MiningOptions.per_sentence)}  # as a plan writes them
    names = MiningOptions.planned_names() - {"layers", "removals", "batch_tokens"}
    stated = {name: plan[name] for name in names & plan.keys() if plan[name] != usual.get(name)}
    words = [str(plan.get("corpus", "CORPUS")), "--out", str(directory), *MiningOptions.words_of(stated | more)]
    return f"mnemoscope mine {model_words(plan)} {shlex.join(words)}"
