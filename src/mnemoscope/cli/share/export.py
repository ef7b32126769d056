"""`mnemoscope export`: memories in other programs' forms; `mnemoscope push`: an atlas as a data set on the hub."""

from collections.abc import Mapping

from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.declared import option
from mnemoscope.foundation.options.mining_options import AtlasArgument, ExportOptions


def export(options: ExportOptions, *, json: bool) -> None:
    """Write memories in other programs' forms.

    jsonl: layer-003.jsonl and so on, a line a memory, the document of `mnemoscope show --json`. neuronpedia: batches of
    SAEDashboard, which Neuronpedia's converter reads. An earlier export in the folder is replaced; nothing is sent
    anywhere.

    Example: mnemoscope export atlas --to jsonl --out memories
    """
    from mnemoscope.atlas import open_atlas
    from mnemoscope.atlas.tables import rebuild_command
    from mnemoscope.sharing.export import export as write

    atlas = open_atlas(options.atlas)
    with reporting() as progress:
        done = write(atlas, options.out, progress=progress, **options.taken_by(write))
    if json:
        listed = [{"path": path, "bytes": size} for path, size in done.files.items()]
        about = {"atlas": str(atlas), "export": str(done.directory), "to": options.to}
        emit({**about, "files": listed, "memories": done.memories, "made_by": atlas.made_by(to=options.to)})
        return
    sizes = done.files.values()
    print(f"{done.directory}: {done.memories:,} memories in {len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB")
    if options.to == "neuronpedia" and not atlas.has("token_activations"):
        remedy = rebuild_command(atlas.path, "token_activations", atlas.manifest)
        print(f"examples are trigger tokens alone; with {remedy} they are sentences with an activation a token")


class PushOptions(AtlasArgument):
    repository: str = option(help="The data set, USER/NAME.", argument=True, metavar="REPO")
    text_license: str = option(help="The licence of the text, which is quoted: its id on the hub.", metavar="ID")
    include_memorised: bool = option(False, "Send what quotes single documents, too: memorised, and its answer.")
    public: bool = option(False, "Make a data set that everybody sees.")


def push(options: PushOptions, *, json: bool) -> None:
    """Send an atlas to the hub, as a data set.

    Sent are a card and the files that its manifests list, which are shown first, and none of them twice. The data set
    is private unless --public is given; one of anything but an atlas is left alone.

    Example: mnemoscope push atlas user/memories --text-license cc-by-sa-4.0
    """
    from mnemoscope.atlas import open_atlas
    from mnemoscope.sharing.push import push as run

    atlas, listed = open_atlas(options.atlas), list[dict[str, object]]()

    def show(sizes: Mapping[str, int]) -> None:
        for path, size in sizes.items():
            print(f"{size:>14,}  {path}")
            listed.append({"path": path, "bytes": size})
        print(f"{len(sizes):,} files, {sum(sizes.values()) / 1e6:,.1f} MB", flush=True)

    with reporting() as progress:
        place = run(atlas, options.repository, before=show, progress=progress, **options.taken_by(run))
    if json:
        about = {"repository": place.repository, "revision": place.revision, "memories": len(atlas)}
        emit({**about, "files": listed, "made_by": atlas.made_by(text_license=options.text_license)})
    else:
        print(f"{'public' if options.public else 'private'}: {place}")
