"""What a power cut may leave of a folder: its calls, replayed on a disk that forgets. Not a test itself.

A file's content is safe when it was flushed after it was written, a name when its folder was flushed after the name was
given or taken. Of everything else a disk may keep all, nothing, the last alone, or a piece: `WAYS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faulty_disk import Call

Tree = dict[str, bytes | None]
"""What lies in a folder by path: the bytes of a file, None for a folder."""


@dataclass
class File:
    """A file: what was flushed of it, and what was done to it since."""

    safe: bytes = b""
    since: list[Call] = field(default_factory=list)

    def after(self, calls: list[Call]) -> bytes:
        """The content after these calls on what is safe."""
        data = bytearray(self.safe)
        for call in calls:
            if call.kind == "write":
                data.extend(bytes(max(0, call.at - len(data))))
                data[call.at : call.at + len(call.data)] = call.data
            else:
                del data[call.at :]
                data.extend(bytes(call.at - len(data)))
        return bytes(data)


@dataclass
class Folder:
    """A folder: its flushed names, and each change since: names, and what bears them or None.

    A change is kept whole or lost whole, a rename within the folder, too.
    """

    safe: dict[str, "File | Folder"] = field(default_factory=dict)
    since: "list[Change]" = field(default_factory=list)

    def after(self, changes: "list[Change]") -> "dict[str, File | Folder]":
        """The names after these changes of what is safe."""
        names = dict(self.safe)
        for name, what in [one for change in changes for one in change.items()]:
            names.pop(name, None)
            if what is not None:
                names[name] = what
        return names

    @property
    def now(self) -> "dict[str, File | Folder]":
        """The names as processes see them."""
        return self.after(self.since)


Change = dict[str, File | Folder | None]


def _all(file: File) -> bytes:
    return file.after(file.since)


def _none(file: File) -> bytes:
    return file.safe


def _last(file: File) -> bytes:
    return file.after(file.since[-1:])


def _torn(file: File) -> bytes:
    """All but the second half of the last write."""
    before, last = file.since[:-1], file.since[-1:]
    if last and last[0].kind == "write":
        call = last[0]
        last = [Call(call.kind, False, call.inode, call.at, call.path, "", call.data[: len(call.data) // 2])]
    return file.after(before + last)


def _backwards(file: File) -> bytes:
    """The file as long as it was to be, its last write's second half there and the first all zeros."""
    last = file.since[-1:]
    if not last or last[0].kind != "write":
        return _last(file)
    call = last[0]
    half = len(call.data) // 2
    return file.after([Call(call.kind, False, call.inode, call.at, call.path, "", bytes(half) + call.data[half:])])


Content = Callable[[File], bytes]
WAYS: dict[str, tuple[Callable[[Folder], "dict[str, File | Folder]"], Content]] = {
    "all kept": (lambda folder: folder.now, _all),
    "all lost": (lambda folder: folder.safe, _none),
    "names kept, content lost": (lambda folder: folder.now, _none),
    "content kept, names lost": (lambda folder: folder.safe, _all),
    "last write torn": (lambda folder: folder.now, _torn),
    "last write alone": (lambda folder: folder.now, _last),
    "last write's end alone": (lambda folder: folder.now, _backwards),
    "last name alone": (lambda folder: folder.after(folder.since[-1:]), _all),
    "last two names alone": (lambda folder: folder.after(folder.since[-2:]), _all),
    "all but the last name": (lambda folder: folder.after(folder.since[:-1]), _all),
}
"""How the names and the content of a disk come back."""


class Disk:
    """A folder as it is before the first call, and then call by call."""

    def __init__(self, start: Path) -> None:
        self._files: dict[int, File] = {}
        self.root = self._begin(start)

    def _begin(self, folder: Path) -> Folder:
        found = Folder()
        for entry in folder.iterdir():
            if entry.is_dir():
                found.safe[entry.name] = self._begin(entry)
            else:
                file = File(entry.read_bytes())
                self._files[entry.stat().st_ino] = file
                found.safe[entry.name] = file
        return found

    def _at(self, path: str) -> "File | Folder | None":
        here: File | Folder | None = self.root
        for step in Path(path).parts:
            here = here.now.get(step) if isinstance(here, Folder) else None
        return here

    def _name(self, path: str, what: "File | Folder | None") -> None:
        self._folder_of(path).since.append({Path(path).name: what})

    def _folder_of(self, path: str) -> Folder:
        folder = self._at(str(Path(path).parent))
        assert isinstance(folder, Folder), path
        return folder

    def make(self, call: Call) -> None:
        """Makes one call; a failed one, and one on a file without a name, changes nothing."""
        if call.failed or call.kind == "note":
            return
        if call.kind == "create":
            self._files[call.inode] = file = File()
            self._name(call.path, file)
        elif call.kind in ("write", "truncate"):
            if call.inode in self._files:
                self._files[call.inode].since.append(call)
        elif call.kind == "flush":
            what = self._at(call.path)
            if isinstance(what, Folder):
                what.safe, what.since = what.now, []
            elif call.inode in self._files:
                file = self._files[call.inode]
                file.safe, file.since = _all(file), []
        elif call.kind == "make folder":
            self._name(call.path, Folder())
        elif call.kind in ("remove", "remove folder"):
            self._name(call.path, None)
        elif call.kind in ("rename", "link"):
            what, old, new = self._at(call.path), self._folder_of(call.path), self._folder_of(call.other)
            given: Change = {Path(call.other).name: what}
            taken: Change = {} if call.kind == "link" else {Path(call.path).name: None}
            if old is new:
                new.since.append(taken | given)
            else:
                new.since.append(given)
                old.since.append(taken)

    def left(self, way: str) -> Tree:
        """What a cut leaves here, one of `WAYS`."""
        names, content = WAYS[way]
        return dict(_walk(self.root, names, content, ""))


def _walk(
    folder: Folder, names: Callable[[Folder], "dict[str, File | Folder]"], content: Content, above: str
) -> Iterator[tuple[str, bytes | None]]:
    for name, what in sorted(names(folder).items(), key=lambda one: one[0]):
        if isinstance(what, File):
            yield above + name, content(what)
        else:
            yield above + name, None
            yield from _walk(what, names, content, f"{above}{name}/")


def write_tree(tree: Tree, folder: Path) -> None:
    """Makes a folder of what a cut left."""
    folder.mkdir(parents=True)
    for path, data in tree.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
