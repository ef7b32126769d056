"""Opens the index of an atlas, and builds it first if it is missing, damaged or older than the atlas.

Of two processes, one builds and the other waits. If the atlas is read-only, the index is in a temporary folder.
"""

import errno
import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.folder import refuse_links
from mnemoscope.atlas.lock import lock_folder
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import AtlasBusy, StoreFailed
from mnemoscope.foundation.files import file_hash, flush, storing
from mnemoscope.foundation.progress import Progress, ignore_progress, report_to
from mnemoscope.search.building import write_index
from mnemoscope.search.database import FOLDER, NAME, VERSION, is_fresh
from mnemoscope.search.index import Index, ReadJudgements

_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_RETRY_AFTER_SECONDS = 0.1


def open_index(
    atlas: Atlas | str | Path, *, progress: bool | Progress = True, annotations: ReadJudgements | None = None
) -> Index:
    """The index of the atlas, for any number of threads; close it, or use it as a context.

    `annotations` returns the final judgements, by default those of `read_judgements`. Raises StoreFailed if the index
    cannot be written for other reasons than permission, and what opening an atlas raises.
    """
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    with report_to(progress) as say:
        try:
            path, temporary = build_index(opened, progress=say), None
        except StoreFailed as refused:
            cause = refused.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _PERMISSION_ERRORS:
                raise
            say("index", 0, None, f"{opened.path} cannot be written; the index is made for this time only")
            temporary = Path(tempfile.mkdtemp(prefix="mnemoscope-search-"))
            try:
                path = _write(opened, temporary / NAME, say)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise

    def rebuild() -> Path:
        return build_index(opened, anew=True) if temporary is None else _write(opened, path, ignore_progress)

    return Index(opened, path, rebuild=rebuild, temporary=temporary, annotations=annotations)


def build_index(atlas: Atlas, *, progress: Progress | None = None, anew: bool = False) -> Path:
    """The index's path; built if it is missing, damaged or stale, or if `anew`."""
    refuse_links(atlas.path)
    say = progress or ignore_progress
    path = atlas.path / FOLDER / NAME
    about = expected_facts(atlas)
    before = _identity(path) if anew else None
    reported = False

    def is_there() -> bool:
        # A fresh index is used even while another process builds; with `anew`, only one that was replaced meanwhile.
        return (not anew or _identity(path) != before) and is_fresh(path, about)

    while not is_there():
        try:
            with lock_folder(path.parent):
                if not is_there():
                    _write(atlas, path, say)
                break
        except AtlasBusy:
            if not reported:
                say("index", 0, None, "another process is building it; waiting")
            reported = True
            time.sleep(_RETRY_AFTER_SECONDS)
    return path


def expected_facts(atlas: Atlas) -> dict[str, str]:
    patterns = atlas.path / TABLES["patterns"].path()
    return {
        "version": str(VERSION),
        "manifest": atlas.manifest_hash,
        "patterns": file_hash(patterns) if atlas.has("patterns") else "",
    }


def _write(atlas: Atlas, path: Path, progress: Progress) -> Path:
    temporary = path.parent / f".{path.name}.{os.getpid()}.mnemoscope-tmp"
    with storing(path):
        try:
            write_index(atlas, temporary, about=expected_facts(atlas), progress=progress)
            flush(temporary)
            temporary.replace(path)
            flush(path.parent)
        except sqlite3.Error as error:
            raise StoreFailed(f"cannot write {path.parent}: {error}; make room there, then run it again") from error
        finally:
            temporary.unlink(missing_ok=True)
    return path


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
