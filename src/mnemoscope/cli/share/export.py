"""`mnemoscope export`: memories in forms that other programs read."""

from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.mining_options import ExportOptions


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
