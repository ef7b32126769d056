"""Documents out of a hub data set, streamed through `datasets`, which is imported only when one is asked for.

`hub:DATASET[:CONFIG[:SPLIT]]`, where DATASET is a name on the hub or a local folder. Nothing is downloaded whole, and
whatever `datasets` says when it fails becomes one line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from mnemoscope.corpus.disk import digest_of_files
from mnemoscope.corpus.readers import Piece, row_text
from mnemoscope.errors import CorpusNotFound, CorpusUnreadable

_PATIENCE: Final = 10.0


def read_hub(
    name: str, *, config: str | None, split: str, revision: str | None, text_field: str, skip: int
) -> Iterator[Piece]:
    """Yield the text of every row after the first `skip`, streamed; `revision` is a commit of the hub.

    Raises:
        CorpusNotFound: no such data set, configuration or split, or no way to reach it.
        CorpusUnreadable: a row without the text, or a stream that breaks off.
    """
    stream = _stream(name, config=config, split=split, revision=revision)
    rows = iter(stream.skip(skip) if skip else stream)
    number = skip
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as problem:
            error = CorpusUnreadable if number > skip else CorpusNotFound
            raise error(f"hub:{name}: row {number} cannot be read ({_reason(problem)})") from None
        yield row_text(row, f"hub:{name}: row {number}", text_field=text_field), True
        number += 1


def find_hub(name: str, *, config: str | None, split: str) -> tuple[str | None, dict[str, object]]:
    """Return the commit that the data set has now (None: a local folder), and what tells its contents from others'.

    Raises:
        CorpusNotFound: no such data set, configuration or split, or no way to reach it.
    """
    folder = Path(name)
    local = folder.exists()
    revision = None if local else _commit(name)
    _stream(name, config=config, split=split, revision=revision)
    if not local:
        return revision, {"commit": revision}
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    return None, {"files": digest_of_files(files)}


def _commit(name: str) -> str | None:
    """Ask the hub once: `datasets` alone tries for half a minute before it says that there is no network."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return HfApi().dataset_info(name, timeout=_PATIENCE).sha
    except RepositoryNotFoundError:
        raise CorpusNotFound(f"hub:{name}: no such data set on the hub, nor a folder of that name") from None
    except Exception as problem:
        reason = _reason(problem)
        raise CorpusNotFound(f"hub:{name}: the hub cannot be asked ({reason}); check name and network") from None


def _stream(name: str, *, config: str | None, split: str, revision: str | None) -> Any:
    import datasets

    loggers = [logging.getLogger(each) for each in ("datasets", "huggingface_hub", "fsspec")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        stream = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
    except Exception as problem:
        reason = _reason(problem)
        wanted = ":".join(["hub", name, *([config] if config else []), *([split] if config else [])])
        raise CorpusNotFound(f"{wanted} cannot be opened ({reason}); check name, split and network") from None
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        if bars:
            datasets.enable_progress_bars()
    if not isinstance(stream, Iterable):
        raise CorpusNotFound(f"hub:{name}: split {split!r} is no stream of rows")
    return stream


def _reason(problem: BaseException) -> str:
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if len(text) <= 200 else text[:197] + "..."
