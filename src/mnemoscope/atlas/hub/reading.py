"""The files of an atlas on the hub: each is fetched when it is first read, into huggingface_hub's own cache.

A revision is settled once, to a commit; from then on the atlas is what that commit holds. Whoever wrote it is not
trusted: the size that is announced is compared before anything is fetched, and what comes is counted. Which names are
fetched, and what their hashes are, files.py knows; nothing is opened or unpacked here.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from mnemoscope.errors import AtlasDamaged, AtlasNotFound, MnemoscopeError
from mnemoscope.foundation.files import HubPath, locate

_MANIFEST = "manifest.json"
LARGEST = 16 << 20
"""Most bytes of a manifest or an answer: a hundred times those of a model of 126 layers."""
_LONGEST = 200


def settle(path: str | os.PathLike[str]) -> Path:
    """The path of an atlas as it is opened: a folder, or a place on the hub at the commit that its revision is now, or,
    without a network, was when it was last read. Raises OptionError, AtlasNotFound, AtlasDamaged.
    """
    at = locate(path)
    if not isinstance(at, HubPath) or _is_commit(at.revision):
        return at
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    asked = _words(at, _MANIFEST)
    with _one_line(at):
        try:
            # Not by the download, which waits for half a minute before it says that there is no network.
            commit = get_hf_file_metadata(hf_hub_url(**asked)).commit_hash or ""
        except HfHubHTTPError:
            raise
        except Exception:
            cached = try_to_load_from_cache(**asked)
            if not isinstance(cached, str):
                raise
            commit = Path(cached).parent.name
    if not _is_commit(commit):
        raise AtlasDamaged(f"{at}: the hub does not say which commit this is")
    return HubPath(f"hf://datasets/{at.repository}@{commit}")


def local_file(at: Path, name: str, size: int | None = None) -> Path:
    """Where the file `name` of the atlas `at` lies on this machine; where nothing lies, if the atlas does not have it.
    `size` is what its manifest says.

    Raises AtlasDamaged for a file on the hub of another size, too large for JSON or without an end, and AtlasNotFound
    where the hub does not give it.
    """
    return _fetch(at, name, size) if isinstance(at, HubPath) else at / name


@cache  # a commit never changes
def _fetch(at: HubPath, name: str, size: int | None) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    place, asked = at / name, _words(at, name)
    most = LARGEST if size is None or name.endswith(".json") else size
    if not isinstance(try_to_load_from_cache(**asked), str | None):  # asked for before, and not there
        return place
    with _one_line(place):
        try:
            file = Path(hf_hub_download(**asked, tqdm_class=_counted_bar(place, size, most)))
        except RemoteEntryNotFoundError:
            return place
    _check(place, file.stat().st_size, size, most)
    return file


def first_line(error: BaseException) -> str:
    """What a library says of its failure: one line, without the token, which a server could repeat."""
    from huggingface_hub import get_token

    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[0].replace(get_token() or "\0", "(the token)")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _words(at: HubPath, name: str) -> dict[str, Any]:
    return {"repo_id": at.repository, "filename": name, "repo_type": "dataset", "revision": at.revision}


def _is_commit(revision: str) -> bool:
    return re.fullmatch("[0-9a-f]{40}", revision) is not None


def _check(place: Path, seen: int, size: int | None, most: int) -> None:
    if seen > most or size not in (None, seen):
        said = f"its manifest says {size:,}" if size not in (None, seen) else f"{most:,} are the most"
        raise AtlasDamaged(f"{place} has {seen:,} bytes, and {said}; it was not read")


def _counted_bar(place: Path, size: int | None, most: int) -> type:
    """A progress bar for huggingface_hub, which asks nobody else whether to go on: it refuses a file that is announced
    with another size, and one that does not end.
    """
    from huggingface_hub.utils import tqdm

    class CountedBar(tqdm):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "leave": False})
            self._came = options.get("initial") or 0
            if options.get("total") is not None:
                _check(place, options["total"], size, most)

        def update(self, n: float | None = 1) -> Any:
            self._came += n or 0
            if self._came > most:
                raise AtlasDamaged(f"{place} does not end after the {most:,} bytes that it may have; it was not read")
            return super().update(n)

        def update_transfer(self, n: float) -> None:
            """Bytes on the way, of which Xet may need more than the file has."""

        def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
            """Likewise."""

    return CountedBar


@contextmanager
def _one_line(place: HubPath) -> Iterator[None]:
    """Turns failures of huggingface_hub, and of what it asks, into one line about the place."""
    from huggingface_hub import errors as hub

    try:
        yield
    except MnemoscopeError:
        raise
    except hub.RevisionNotFoundError:
        line = f"{place}: {place.repository} has no revision {place.revision}; leave out @{place.revision}"
    except hub.RepositoryNotFoundError:
        line = (
            f"{place}: the hub shows no data set {place.repository}; check the name, and if it is private or gated,"
            " `hf auth login`"
        )
    except hub.RemoteEntryNotFoundError:
        line = f"{place} does not hold an atlas (no {_MANIFEST}); name a data set that `mnemoscope push` made"
    except Exception as error:
        reason = first_line(error.__cause__ or error if isinstance(error, hub.LocalEntryNotFoundError) else error)
        line = f"{place} cannot be fetched, and is not in the cache ({reason}); check the network"
    else:
        return
    raise AtlasNotFound(line) from None
