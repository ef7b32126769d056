"""An atlas as a data set on the hub: which of its files are sent, and the one commit that they become.

Sent is what the atlas's manifests list and the format names, and a card. huggingface_hub sends large files first, and
none that has arrived before, so a push that was broken off goes on, and readers see all of it or nothing.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.folder import is_manifest, is_shared
from mnemoscope.atlas.hub.reading import local_file, one_line_failures
from mnemoscope.atlas.manifest import ANALYSES, EXTENSIONS, MANIFEST, SEAL
from mnemoscope.errors import AtlasDamaged, AtlasExists, OptionError, StoreFailed
from mnemoscope.foundation.files import HubPath, file_hash, json_bytes, locate
from mnemoscope.foundation.formatting import show_text
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.sharing.card import make_card

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_QUOTES_DOCUMENTS = re.compile(rf"({ANALYSES}/)?memorised(\.cases)?\.(parquet|json)")
_TOGETHER = 16  # files that are sent between two reports


def push(
    atlas: Atlas | str | os.PathLike[str],
    repository: str,
    *,
    text_license: str,
    include_memorised: bool = False,
    public: bool = False,
    before: Callable[[Mapping[str, int]], None] = lambda _: None,
    progress: bool | Progress = True,
) -> HubPath:
    """Sends an atlas to the hub, as one commit of a data set, which is made if there is none; returns its address.

    The token is that of `hf auth login`, or HF_TOKEN. Raises OptionError, AtlasUnfinished for a part, AtlasDamaged,
    AtlasExists for a data set of something else or one that others see than asked, StoreFailed where the hub refuses.

    Args:
        atlas: An atlas, or its folder.
        repository: The data set, USER/NAME.
        text_license: The licence of the text, which is quoted: its id on the hub.
        include_memorised: Send what quotes single documents, too: memorised, and its answer.
        public: Make a data set that everybody sees.
        before: Called with the bytes of each file by its path, before any is sent.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    locate(f"hf://datasets/{repository}")
    if not re.fullmatch("[a-z0-9][a-z0-9.-]*", text_license):
        raise OptionError(f"--text-license {text_license!r} is no licence's id; such are cc-by-sa-4.0, other, unknown")
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    card = make_card(opened, repository, text_license).encode()
    contents = {"README.md": card} | _contents(opened, include_memorised=include_memorised)
    before({path: len(one) if isinstance(one, bytes) else one.stat().st_size for path, one in contents.items()})
    if get_token() is None:
        raise StoreFailed(f"{repository} cannot be written without a token; `hf auth login`, or set HF_TOKEN")
    failed = "cannot be written ({}); run it again: what has arrived is not sent twice"
    api, what = HfApi(), show_text(f"Memories of {opened.manifest.model.spec} on {opened.manifest.corpus.spec}")[:72]
    with ExitStack() as after, report_to(progress) as report, one_line_failures(repository, StoreFailed, failed):
        if not are_progress_bars_disabled():
            disable_progress_bars()
            after.callback(enable_progress_bars)
        head, there = _look_up(api, repository, public=public)
        new = [CommitOperationAdd(path, one) for path, one in contents.items()]
        old = [CommitOperationDelete(path) for path in there if is_shared(path) and path not in contents]
        for done in range(0, len(new), _TOGETHER):
            report("sending", done, len(new), "files")
            api.preupload_lfs_files(repository, new[done : done + _TOGETHER], repo_type="dataset", free_memory=False)
        made = api.create_commit(repository, [*old, *new], commit_message=what, parent_commit=head, repo_type="dataset")
    return HubPath(f"hf://datasets/{repository}@{made.oid}")


def _contents(atlas: Atlas, *, include_memorised: bool) -> dict[str, Path | bytes]:
    """What is sent of the atlas, by path; the manifests of what was made later list no more than that."""
    contents: dict[str, Path | bytes] = {name: atlas.local(name) for name in (MANIFEST, SEAL)}
    for side in ("", EXTENSIONS, ANALYSES):
        sent = {
            path: entry
            for path, entry in sorted((atlas.made_later(side) if side else atlas.manifest.files).items())
            if is_shared(path) and (include_memorised or not _QUOTES_DOCUMENTS.fullmatch(path))
        }
        if side and sent:
            contents[f"{side}/{MANIFEST}"] = json_bytes({"atlas": atlas.manifest_hash, "files": sent})
        for path, entry in sent.items():
            file = contents[path] = atlas.local(path)
            if not file.is_file() or file_hash(file) != entry["sha256"]:
                raise AtlasDamaged(f"{atlas.path / path} is not what its manifest says; see `mnemoscope verify`")
    return contents


def _look_up(api: "HfApi", repository: str, *, public: bool) -> tuple[str | None, set[str]]:
    """The head of the data set and the files there; makes it if there is none."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.dataset_info(repository)
    except RepositoryNotFoundError:
        api.create_repo(repository, repo_type="dataset", private=not public)
        return None, set()
    if bool(info.private) == public:
        seen = "private; leave out --public" if public else "public; add --public"
        raise AtlasExists(f"{repository} is there and {seen}, or change it in its settings on the hub")
    there = set(api.list_repo_files(repository, revision=info.sha, repo_type="dataset"))
    others = sorted(there - {".gitattributes"})  # which the hub puts into an empty one
    at = HubPath(f"hf://datasets/{repository}@{info.sha}")
    if others and not ({MANIFEST, SEAL} <= there and is_manifest(local_file(at, MANIFEST))):
        raise AtlasExists(f"{repository} holds {show_text(others[0])} and no atlas; choose another name")
    return info.sha, there
