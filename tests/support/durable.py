"""What a power cut would leave: every flush and every rename, in order. Not a test itself.

A file that bears its name at the end must have been flushed before it got that name, the folder that holds it after it,
and the folder's own parent after the folder was made.
"""

import os
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """Follows `os.fsync`, `os.replace`, `os.rename` and `os.unlink` below a folder while it stands."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root.resolve()
        self.flushed: dict[tuple[int, int], int] = {}
        """The state (inode and size) of every flushed file, and when."""
        self.folders: dict[Path, int] = {}
        self.named: dict[Path, int] = {}
        self.removed: dict[Path, int] = {}
        self.before: dict[Path, int] = {}
        """When the folder of a file had last been flushed before the file got its name."""
        self._now = 0
        real_sync, real_replace, real_rename = os.fsync, os.replace, os.rename

        def sync(handle: int) -> None:
            real_sync(handle)
            self._now += 1
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            found = os.fstat(handle)
            if path.is_dir():
                self.folders[path] = self._now
            else:
                self.flushed[found.st_ino, found.st_size] = self._now

        def replaced(real: Any) -> Any:
            def move(source: Any, target: Any, **rest: Any) -> None:
                real(source, target, **rest)
                self._now += 1
                path = Path(target).resolve()
                self.named[path], self.before[path] = self._now, self.folders.get(path.parent, -1)

            return move

        real_unlink = os.unlink

        def unlink(path: Any, **rest: Any) -> None:
            real_unlink(path, **rest)
            self._now += 1
            self.removed[Path(path).absolute()] = self._now

        patch.setattr(os, "unlink", unlink)
        patch.setattr(os, "fsync", sync)
        patch.setattr(os, "replace", replaced(real_replace))
        patch.setattr(os, "rename", replaced(real_rename))

    def at_risk(self) -> list[str]:
        """The files and folders below the root that a power cut could take, or leave empty."""
        found = []
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_dir():
                if path.parent not in self.folders:
                    found.append(f"{name}: its parent was not flushed")
                continue
            state = path.stat()
            written = self.flushed.get((state.st_ino, state.st_size))
            given = self.named.get(path, 0)
            if written is None:
                found.append(f"{name}: not flushed")
            elif given and written > given:
                found.append(f"{name}: named before it was flushed")
            elif self.folders.get(path.parent, -1) < max(written, given):
                found.append(f"{name}: its folder was not flushed after it")
        return found
