"""Documents of one file (runs of lines of a `.txt`, rows of a `.jsonl` or a `.parquet`) or of a hub data set.

Every reader yields `(piece, ends)`: a document's pieces, joined, are its text, and `ends` is True on the last. Only a
very long run of lines comes in several pieces, so that a text without blank lines is read in bounded memory.

A data set of the hub is streamed through `datasets`, which is imported only then: nothing is downloaded whole, and any
failure of `datasets` becomes one line.
"""

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mnemoscope.corpus.sources.row_fields import LONGEST_IDS, BadRow, RowField
from mnemoscope.corpus.sources.streams import LONGEST, Meter, check_fetched, lines, one_line, too_long
from mnemoscope.errors import CorpusNotFound, CorpusUnreadable, OptionError
from mnemoscope.foundation.files import digest_of_files

Piece = tuple[str, bool]

PIECE = 1 << 19
"""Characters after which a run of lines is yielded in pieces; no sentence crosses from one to the next."""

_TOGETHER = 512
"""Rows of a Parquet file that are unpacked at once, if they are short."""
_UNPACKED = 1 << 26
"""Most bytes of these; a larger row group is unpacked row by row."""
_UTF8_MOST = 4
_ID_BYTES = 8
_HUB_TIMEOUT_SECONDS = 10.0


def read_text(path: Path, meter: Meter, *, split: str) -> Iterator[Piece]:
    if split == "line":
        for line, _ in lines(path, meter):
            if line and not line.isspace():
                yield line, True
        return
    held: list[str] = []
    size = 0
    open_run = open_line = False
    for line, ended in lines(path, meter, cut_after=PIECE):
        if not open_line and ended and (not line or line.isspace()):
            if open_run:
                yield "".join(held), True
            held, size, open_run = [], 0, False
            continue
        if size > PIECE:
            yield "".join(held), False
            held, size = [], 0
        held += ["\n", line] if open_run and not open_line else [line]
        size = size + len(line) + 1 if ended else PIECE + 1  # a piece of a line is yielded as it is
        open_run, open_line = True, not ended
    if open_run:
        yield "".join(held), True


def read_jsonl(path: Path, meter: Meter, *, field: RowField) -> Iterator[Piece]:
    """Yields every row's text, skipping blank lines; a null field is an empty document."""
    is_first = True
    for number, (line, _) in enumerate(lines(path, meter), 1):
        if not line or line.isspace():
            continue
        place, row = f"{path}: line {number}", None
        try:
            row = json.loads(line)
        except ValueError as error:
            wrong = BadRow(f"{place} is not JSON ({error})")
        except RecursionError:
            wrong = BadRow(f"{place} is nested too deeply to be read")
        if is_first and line.lstrip().startswith("[") and (row is None or any(isinstance(one, dict) for one in row)):
            raise CorpusUnreadable(
                f"{path} is one JSON array, not a row in every line; write its rows as lines, as"
                " `jq -c '.[]' FILE > FILE.jsonl` does"
            )
        is_first = False
        if row is None and line.strip() != "null":
            field.bad.pass_over(place, wrong)
        elif (text := field.text_of(row, place)) is not None:
            yield text, True


def read_parquet(path: Path, meter: Meter, *, field: RowField) -> Iterator[Piece]:
    """Yields every row's text; a null field is an empty document."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    before = meter.done
    try:
        with path.open("rb") as raw:
            check_fetched(path, raw.read(64))
        with pq.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            fields = [field, *([] if field.source is None else [field.source])]
            for each in fields:
                _check_column(path, file.schema_arrow, each)
            names = [*(each.name for each in fields), *([field.mask] if field.ids else [])]
            rows, size, row = max(1, file.metadata.num_rows), path.stat().st_size, 0
            together = min(_rows_together(path, file.metadata, each) for each in fields)
            for batch in file.iter_batches(batch_size=together, columns=names, use_threads=False):
                for values in zip(*batch.columns, strict=True):
                    row += 1
                    place = f"{path}: row {row}"
                    if field.ids and any(len(one.values or ()) > LONGEST_IDS for one in values if _is_list(one.type)):
                        raise too_long(f"{place} of column {field.name!r}")
                    try:
                        cells = {name: one.as_py() for name, one in zip(batch.schema.names, values, strict=True)}
                    except UnicodeDecodeError:
                        field.bad.pass_over(place, BadRow(f"{place} of column {field.name!r} is not UTF-8"))
                        continue
                    if (text := field.text_of(cells, place)) is not None:
                        yield text, True
                meter.done = before + size * row // rows
    except FileNotFoundError:
        raise CorpusNotFound(f"no such file: {path}") from None
    except (pa.ArrowException, OSError) as error:
        reason = one_line(error)[:120]
        raise CorpusUnreadable(f"{path} is not a readable Parquet file ({reason}); get it again") from None


def _check_column(path: Path, schema: Any, field: RowField) -> None:
    import pyarrow as pa

    if (kind := _kind_of(path, schema, field.name)) is None:
        names = ", ".join(map(repr, schema.names[:8]))
        raise CorpusUnreadable(f"{path} has no column {field.name!r} (it has {names}); use {field.option}")
    if field.chat:
        return
    ids = _is_list(kind) and pa.types.is_integer(kind.value_type)
    if field.ids and not ids:
        raise CorpusUnreadable(f"{path}: column {field.name!r} holds {kind}, not lists of token ids")
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)
    if not field.ids and not texts:
        advice = "; token ids are read with --ids-field" if ids else ""
        raise CorpusUnreadable(f"{path}: column {field.name!r} holds {plain}, not text{advice}")


def _kind_of(path: Path, fields: Any, name: str) -> Any:
    import pyarrow as pa

    indices = fields.get_all_field_indices(name)
    if len(indices) > 1:
        raise CorpusUnreadable(f"{path} has {len(indices)} columns of the name {name!r}; rename all but one")
    if indices:
        return fields.field(indices[0]).type
    for place in (place for place, letter in enumerate(name) if letter == "."):
        inner = _kind_of(path, fields, name[:place])
        if inner is not None and pa.types.is_struct(inner):
            return _kind_of(path, inner, name[place + 1 :])
    return None


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _rows_together(path: Path, metadata: Any, field: RowField) -> int:
    """How many rows may be unpacked at once: a dictionary can repeat its longest text."""
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    # A list's numbers and the parts of messages are columns below it.
    places = [n for n, each in enumerate(paths) if each == field.name or each.startswith(f"{field.name}.")]
    most = 1
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(place) for place in places]
        size = sum(_ID_BYTES * one.num_values if field.ids else one.total_uncompressed_size for one in columns)
        longest = _ID_BYTES * LONGEST_IDS if field.ids else _UTF8_MOST * LONGEST
        if size > (group.num_rows + 1) * longest:
            raise too_long(f"{path}: a row of column {field.name!r}")
        most = max(most, size)
    return max(1, min(_TOGETHER, _UNPACKED // most))


def read_hub(name: str, stream: Any, *, field: RowField) -> Iterator[Piece]:
    """Yields the text of every row."""
    number = 0
    try:
        for row in stream:
            if (text := field.text_of(row, f"hub:{name}: row {number}")) is not None:
                yield text, True
            number += 1
    except CorpusUnreadable:
        raise
    except Exception as error:
        kind = CorpusUnreadable if number else CorpusNotFound
        raise kind(f"hub:{name}: row {number} cannot be read ({_reason(error)})") from None


def find_hub(name: str, *, config: str | None, split: str) -> tuple[Callable[[], Any], dict[str, object]]:
    """What opens the data set at its present commit, and a description of its contents."""
    try:
        import datasets  # noqa: F401
    except ModuleNotFoundError:
        line = f"hub:{name} needs datasets, which is not installed"
        raise OptionError(f"{line}; pip install 'mnemoscope[hub]'") from None
    folder = Path(name)
    revision = None if folder.exists() else _commit(name)
    stream = partial(_stream, name, config=config, split=split, revision=revision)
    stream()
    if not folder.exists():
        return stream, {"commit": revision}
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    return stream, {"files": digest_of_files(files)}


def _commit(name: str) -> str | None:
    """One request to the hub: `datasets` alone retries for half a minute before it reports a missing network."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return HfApi().dataset_info(name, timeout=_HUB_TIMEOUT_SECONDS).sha
    except RepositoryNotFoundError:
        raise CorpusNotFound(f"hub:{name}: no such data set on the hub, nor a folder of that name") from None
    except Exception as error:
        reason = _reason(error)
        raise CorpusNotFound(f"hub:{name}: the hub cannot be asked ({reason}); check name and network") from None


def _stream(name: str, *, config: str | None, split: str, revision: str | None) -> Any:
    import datasets

    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL - 1)
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
    except Exception as error:
        spec = ":".join(["hub", name, *([config, split] if config else [])])
        raise CorpusNotFound(f"{spec} cannot be opened ({_reason(error)}); check name, split and network") from None
    finally:
        logging.disable(silenced)
        if bars:
            datasets.enable_progress_bars()


def _reason(error: BaseException) -> str:
    text = one_line(error)
    return text if len(text) <= 200 else text[:197] + "..."
