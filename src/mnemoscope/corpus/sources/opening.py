"""Opens a text by its spec: a file, a glob of files, a hub data set or the built-in corpus.

A source yields documents in a fixed order. It cuts no sentences, does not know the hash rule for held-out documents,
and reads nothing before documents are requested, but refuses an impossible spec at once.
"""

import glob
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from mnemoscope.corpus.sources import pydocs
from mnemoscope.corpus.sources.readers import Piece, find_hub, read_hub, read_jsonl, read_parquet, read_text
from mnemoscope.corpus.sources.row_fields import BadRows, Render, RowField
from mnemoscope.corpus.sources.sentences import check_split
from mnemoscope.corpus.sources.streams import COMPRESSED, LONGEST, Meter, too_long
from mnemoscope.errors import CorpusNotFound, CorpusUnreadable, OptionError
from mnemoscope.foundation.options.model_options import display_name

_ENDINGS = (".txt", ".jsonl", ".ndjson", ".json", ".parquet")
_TABLES = (".csv", ".tsv")
BUILT_IN = {"builtin:pydocs": "all", "builtin:pydocs:stdlib": "stdlib"}
_HASH_BYTES = 8
_GIVE = (
    "give a .txt, .jsonl (.ndjson, .json) or .parquet file (also .gz, .xz, .zst), rename a file with another ending, or"
    " give a glob of them, hub:DATASET or builtin:pydocs"
)


@final
@dataclass(frozen=True)
class Source:
    """A text that can be read repeatedly, always the same documents in the same order."""

    spec: str
    identity: dict[str, object]
    """Decides whether a tokenized corpus can be reused, as plain JSON values: names, sizes and dates of files (also of
    the built-in text), wherever they lie; the commit of a data set on the hub."""
    read: Callable[[Meter, RowField], Iterator[Piece]]
    """Yields the pieces of the documents, and meters bytes of the files."""
    size: int | None = None
    held_out: frozenset[str] | None = None
    """Keys of the documents held out in place of the hash rule (the built-in corpus), or None."""
    meter: Meter = field(default_factory=Meter)
    rows: RowField = field(default_factory=lambda: RowField("text"))
    draw: tuple[float, int] | None = None
    """The share of documents that there are at all, and the seed that draws them; None: every one."""

    @property
    def name(self) -> str:
        return display_name(self.spec, of_text=True)

    def pieces(self, *, vocabulary: int | None = None, render: Render | None = None) -> Iterator[Piece]:
        """Yields `(piece, ends)`: a document is its pieces joined, `ends` is True on its last.

        `vocabulary` bounds the token ids in rows of ids; None does not. `render` makes the text of a chat. Raises
        CorpusNotFound for a file that has gone, CorpusUnreadable, with the place, for text that is damaged or not of
        the kind that its name states.
        """
        self.meter.done = self.meter.passed_over = 0
        self.rows.bad.places.clear()
        pieces = self.read(self.meter, replace(self.rows, vocabulary=vocabulary, render=render))
        yield from pieces if self.draw is None else self._draw_from(pieces, *self.draw)

    def documents(self, *, vocabulary: int | None = None, render: Render | None = None) -> Iterator[str]:
        """Yields every document; raises like `pieces`, and above `LONGEST` characters."""
        return self._join_pieces(self.pieces(vocabulary=vocabulary, render=render))

    def with_sample(self, share: float | None, seed: int) -> "Source":
        """The same text with a seeded share of its documents (definitions.md section 3, "sample"); None: all."""
        if share is None:
            return self
        return replace(self, draw=(share, seed), identity={**self.identity, "sample": [share, seed]})

    def _draw_from(self, pieces: Iterator[Piece], share: float, seed: int) -> Iterator[Piece]:
        """Each document is drawn by its text alone (the first 8 bytes of blake2b of the seed in decimal, a space and
        the text, over 2^64, are below the share).
        """
        for text in self._join_pieces(pieces):
            digest = hashlib.blake2b(f"{seed} {text}".encode()).digest()
            if int.from_bytes(digest[:_HASH_BYTES]) >= share * 2.0 ** (8 * _HASH_BYTES):
                self.meter.passed_over += 1
            else:
                yield text, True

    def _join_pieces(self, pieces: Iterator[Piece]) -> Iterator[str]:
        parts: list[str] = []
        number, size = 0, 0
        for piece, ends in pieces:
            parts.append(piece)
            size += len(piece)
            if size > LONGEST:
                raise too_long(f"{self.spec}: document {number}")
            if ends:
                yield "".join(parts)
                parts, number, size = [], number + 1, 0


def open_source(
    spec: str,
    *,
    text_field: str = "text",
    ids_field: str | None = None,
    split: str = "sentence",
    chat: bool = False,
    skip_bad_rows: int = 0,
    source_field: str | None = None,
) -> Source:
    """The source of `spec`: `builtin:pydocs[:stdlib]`, `hub:DATASET[:CONFIG[:SPLIT]]`, a file or a glob.

    `text_field` is the field of a row (JSON lines, Parquet, hub) that holds its text; with `chat` it holds messages.
    `source_field` holds the source that it is read with. `ids_field` holds token ids instead; the text is then the ids
    in decimal, joined by spaces. With `split` `line`, every line of a `.txt` is a document. At most `skip_bad_rows` bad
    rows are skipped. Raises OptionError for an unknown split, or fields of a text that has none, CorpusNotFound,
    CorpusUnreadable for a file with an unknown ending.
    """
    check_split(split)
    bad = BadRows(skip_bad_rows)
    field = RowField(text_field, chat=chat, bad=bad) if ids_field is None else RowField(ids_field, ids=True, bad=bad)
    if source_field is not None:
        field = replace(field, source=RowField(source_field, bad=bad, flag="--source-field"))
    if spec.startswith("builtin:"):
        if field.ids or field.source is not None:
            raise _no_fields(spec, field)
        return _built_in(spec)
    if spec.startswith("hub:"):
        return _hub(spec, field=field)
    return _files(spec, field=field, split=split)


def _no_fields(what: str, field: RowField) -> OptionError:
    option = (field.source or field).option
    return OptionError(
        f"{what} is plain text, which has no fields; {option} goes with .jsonl, .parquet and hub:DATASET"
    )


def _identity(field: RowField) -> dict[str, object]:
    options = {"chat": True} if field.chat else {}
    passed = {"skip_bad_rows": field.bad.most} if field.bad.most else {}
    sources = {} if field.source is None else {"source_field": field.source.name}
    return {"ids_field" if field.ids else "text_field": field.name, **sources, **options, **passed}


def _built_in(spec: str) -> Source:
    part = BUILT_IN.get(spec)
    if part is None:
        raise CorpusNotFound(f"no built-in corpus {spec!r}; there are {' and '.join(BUILT_IN)}")

    def read(meter: Meter, _: RowField) -> Iterator[Piece]:
        for text in pydocs.documents(part):
            meter.done += len(text.encode())
            yield text, True

    identity: dict[str, object] = {"spec": spec, "files": pydocs.sources_digest(part)}
    return Source(spec, identity, read, held_out=pydocs.held_out_hashes())


def _hub(spec: str, *, field: RowField) -> Source:
    name, *options = spec.removeprefix("hub:").split(":")
    if not name or len(options) > 2:
        raise CorpusNotFound(f"{spec!r} does not name a data set; write hub:DATASET, hub:DATASET:CONFIG or with :SPLIT")
    config = options[0] if options and options[0] else None
    rows = options[1] if len(options) == 2 and options[1] else "train"
    stream, contents = find_hub(name, config=config, split=rows)

    def read(meter: Meter, row_field: RowField) -> Iterator[Piece]:
        for text, ends in read_hub(name, stream(), field=row_field):
            meter.done += len(text.encode())
            yield text, ends

    return Source(spec, {"spec": spec, **_identity(field), **contents}, read, rows=field)


def _files(spec: str, *, field: RowField, split: str) -> Source:
    paths = _matching_files(spec)
    endings = [_ending(path) for path in paths]
    if (field.ids or field.source is not None) and ".txt" in endings:
        raise _no_fields(str(paths[endings.index(".txt")]), field)
    stats = [path.stat() for path in paths]

    def read(meter: Meter, row_field: RowField) -> Iterator[Piece]:
        for path, ending, opened in zip(paths, endings, stats, strict=True):
            rows = read_parquet if ending == ".parquet" else read_jsonl
            yield from read_text(path, meter, split=split) if ending == ".txt" else rows(path, meter, field=row_field)
            now = path.stat() if path.exists() else None
            if now is None or (now.st_size, now.st_mtime_ns) != (opened.st_size, opened.st_mtime_ns):
                raise CorpusUnreadable(f"{path} changed while it was read; run the same command again")

    identity: dict[str, object] = {
        "files": [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in zip(paths, stats, strict=True)],
        **_identity(field),
        "split": split,
    }
    return Source(spec, identity, read, size=sum(stat.st_size for stat in stats), rows=field)


def _matching_files(spec: str) -> list[Path]:
    path = Path(spec)
    if spec and path.is_file():
        return [path]
    if spec and path.is_dir():
        raise CorpusNotFound(f"{spec} is a folder; name its files with a glob such as {path / '*.txt'}")
    if glob.has_magic(spec):
        named = {Path(name) for name in glob.glob(spec, recursive=True)}
        if matches := sorted((each for each in named if each.is_file()), key=str):
            return matches
        raise CorpusNotFound(f"no file matches {spec!r}; {_GIVE}")
    raise CorpusNotFound(f"no such text: {spec!r}; {_GIVE}")


def _ending(path: Path) -> str:
    packing = path.suffix.lower() if path.suffix.lower() in COMPRESSED else ""
    kind = (path.with_suffix("") if packing else path).suffix.lower()
    if kind in _TABLES:
        raise CorpusUnreadable(
            f"{path}: a CSV or TSV table; make it JSON lines with polars: pl.read_csv(FILE).write_ndjson('a.jsonl')"
        )
    if kind not in _ENDINGS:
        raise CorpusUnreadable(f"{path}: unknown kind of text; {_GIVE}")
    if packing and kind == ".parquet":
        raise CorpusUnreadable(f"{path}: Parquet is compressed inside; unpack the {packing} around it first")
    return kind
