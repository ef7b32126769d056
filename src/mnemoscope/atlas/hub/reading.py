"""The files of an atlas on the hub: each is fetched when it is first read, into huggingface_hub's own cache.

A revision is settled once, to a commit. Whoever wrote it is not trusted: the size that is announced is compared before
anything is fetched, and what comes is counted. Which names are fetched, and with which hashes, files.py knows.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from mnemoscope.errors import AtlasDamaged, AtlasError, AtlasNotFound, MnemoscopeError
from mnemoscope.foundation.files import HubPath, locate

_MANIFEST, _COMMIT = "manifest.json", re.compile("[0-9a-f]{40}")
# Most bytes of a manifest or an answer, a hundred times those of 126 layers; and most characters of a reason.
_LARGEST, _LONGEST = 16 << 20, 200


def settle(path: str | os.PathLike[str]) -> Path:
    """The path of an atlas as it is opened: a folder, or a place on the hub at the commit that its revision is now, or,
    without a network, was when it was last read. Raises OptionError, AtlasNotFound, AtlasDamaged.
    """
    at = locate(path)
    if not isinstance(at, HubPath) or _COMMIT.fullmatch(at.revision):
        return at
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    asked = _words(at, _MANIFEST)
    with one_line_failures(at):
        try:
            # Says at once that there is no network, for which the download waits half a minute.
            get_hf_file_metadata(hf_hub_url(**asked))
        except Exception:
            file = try_to_load_from_cache(**asked)
            if not isinstance(file, str):
                raise
        else:
            file = hf_hub_download(**asked, tqdm_class=_counted_bar(at / _MANIFEST, None, _LARGEST))
    return HubPath(f"hf://datasets/{at.repository}@{Path(file).parent.name}")


def local_file(at: Path, name: str, size: int | None = None) -> Path:
    """Where the file `name` of the atlas `at` lies on this machine, if it is there. Raises AtlasDamaged for one of
    another `size` than its manifest says, or too large, and AtlasNotFound where the hub does not give it.
    """
    return _fetch(at, name, size) if isinstance(at, HubPath) else at / name


@cache  # a commit never changes
def _fetch(at: HubPath, name: str, size: int | None) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    place, asked = at / name, _words(at, name)
    most = _LARGEST if size is None or name.endswith(".json") else size
    if not isinstance(try_to_load_from_cache(**asked), str | None):  # asked for before, and not there
        return place
    with one_line_failures(place):
        try:
            file = Path(hf_hub_download(**asked, tqdm_class=_counted_bar(place, size, most)))
        except RemoteEntryNotFoundError:
            return place
    _check(place, file.stat().st_size, size, most)
    return file


def _words(at: HubPath, name: str) -> dict[str, Any]:
    return {"repo_id": at.repository, "filename": name, "repo_type": "dataset", "revision": at.revision}


def _check(place: Path, seen: int, size: int | None, most: int) -> None:
    if seen > most or size not in (None, seen):
        said = f"{most:,} are the most" if size in (None, seen) else f"its manifest says {size:,}"
        raise AtlasDamaged(f"{place} has {seen:,} bytes, and {said}; it was not read")


def _counted_bar(place: Path, size: int | None, most: int) -> type:
    """A progress bar for huggingface_hub, which asks nobody else whether to go on: it ends what gets too large."""
    from huggingface_hub.utils.tqdm import tqdm

    class CountedBar(tqdm):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "disable": True})  # type: ignore[no-untyped-call]
            self._came = options.get("initial") or 0
            if options.get("total") is not None:
                _check(place, options["total"], size, most)

        def update(self, n: float | None = 1) -> Any:
            self._came += n or 0
            # Xet counts what is on the way, which may be a little more than the file.
            _check(place, int(self._came), None, most + most // 16 + (1 << 16))
            return super().update(n)

    return CountedBar


@contextmanager
def one_line_failures(
    place: object, kind: type[AtlasError] = AtlasNotFound, failed: str = "cannot be fetched ({}); check the network"
) -> Iterator[None]:
    """Turns failures of huggingface_hub into one line about the place, without the token, which a server may repeat."""
    from huggingface_hub import errors as hub
    from huggingface_hub import get_token

    try:
        yield
    except MnemoscopeError:
        raise
    except hub.RevisionNotFoundError:
        line = f"{place}: there is no such revision"
    except hub.RepositoryNotFoundError:
        line = f"{place}: the hub shows no such data set; check its name, and if it is not public, `hf auth login`"
    except hub.RemoteEntryNotFoundError:
        line = f"{place} does not hold an atlas (no {_MANIFEST})"
    except Exception as error:
        told = error.__cause__ or error if isinstance(error, RuntimeError | hub.LocalEntryNotFoundError) else error
        reason = (str(told).strip().splitlines() or [type(told).__name__])[0].replace(get_token() or "\0", "(token)")
        line = f"{place} {failed.format(reason[:_LONGEST])}"
    else:
        return
    raise kind(line) from None
