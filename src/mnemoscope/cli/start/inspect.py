"""`mnemoscope inspect`: a model's anatomy and load-time proof, and the cost of mining a text with it."""

from textwrap import fill
from typing import Any

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.mined import OTHER_FUNCTION, summarise
from mnemoscope.cli.progress import loading, reporting, spoken_time
from mnemoscope.cli.runner import emit
from mnemoscope.errors import OptionError
from mnemoscope.foundation.files import HubPath, locate
from mnemoscope.foundation.formatting import format_blocks
from mnemoscope.foundation.options.mining_options import InspectOptions, MiningOptions
from mnemoscope.foundation.options.model_options import check_names

_INDENT, _JOINED = " " * 14, "\N{NO-BREAK SPACE}"


def inspect(options: InspectOptions, *, json: bool) -> None:
    """Show a model's anatomy, and what mining it costs.

    Its sizes and the proof made at loading, too. Of an atlas: its model, its text and its size.

    Example: mnemoscope inspect builtin:pydocs --corpus wiki.txt
    """
    model, corpus = options.model, options.corpus
    at = locate(model)
    if isinstance(at, HubPath) or ((at / "manifest.json").is_file() and not (at / "config.json").is_file()):
        if corpus is not None:
            raise OptionError(f"{model} is an atlas; --corpus estimates what mining with a model costs")
        summarise(at, json=json)
        return
    check_names(model, options.loading.opening)
    mined = MiningOptions.of(vars(options))
    arg.check_text(corpus, mined)
    from mnemoscope.foundation.origin import made_by
    from mnemoscope.mining.cost_estimate import describe, estimate
    from mnemoscope.models import load_for_ids, load_model

    load = load_model if mined.ids_field is None else load_for_ids
    with loading(model):
        loaded = load(model, **options.loading.keywords())
    with reporting() as progress:
        facts = describe(loaded)
        cost = None if corpus is None else estimate(loaded, corpus, mined, progress=progress)
    if json:
        estimated = None if cost is None else {**vars(cost), "total_seconds": cost.total_seconds}
        apart = ("model", "seed", "device")
        stated = {one.name: value for one, value in options.values() if one.name not in apart}
        stated |= {"dictionary": stated["dictionary"] and str(stated["dictionary"])}
        seed = None if corpus is None else mined.seed
        origin = made_by(model=loaded.fingerprint, atlas=None, options=stated, seed=seed)
        emit({**facts, "cost": estimated, "made_by": origin})
        return
    kind = " ".join((facts["block"], "gated" if facts["gated"] else "ungated", facts["activation"]))
    beginning = facts["beginning"]
    print(f"{facts['model']}: family {facts['family']}, {kind}")
    sizes = " or ".join(dict.fromkeys(map(_spoken_layer, facts["memories"], facts["layer_experts"])))
    print(
        f"  sizes       {facts['layers']} layers x {sizes}, "
        f"hidden {facts['hidden']:,}, vocabulary {facts['vocabulary']:,}, context {facts['context']:,}"
    )
    if "other_blocks" in facts:
        print(f"  blocks      {format_blocks(facts['layer_blocks'], facts['other_blocks'])}")
    print(f"  parameters  {facts['parameters']:,}, {100 * facts['ffn_share']:.0f} % of them in feed-forward layers")
    token = "" if beginning["token"] is None else f", token {beginning['token']}"
    print(f"  beginning   {beginning['kind']}{token}")
    if facts["head"] != "linear":
        print(f"  head        {facts['head']}{': the keys alone are read' if loaded.keys_only else ''}")
    if facts["values"] != "read":
        print(f"  values      {facts['values']}: what the layers make of unit vectors")
    print(f"  numbers     {facts['dtype']} on {' and '.join(facts['lies_on'])}")
    if facts["unread_weights"]:
        print(f"  not read    {facts['unread_weights']:,} stored weights, such as {loaded.unread[0]}")
    if "attention_weights" in facts:
        print(f"  attention   where it looks is unknown: {OTHER_FUNCTION}")
    print("  proof       " + ", ".join(f"{name} {error:.1e}" for name, error in facts["proof"].items()))
    if cost is not None:
        about = "" if cost.exact else "about "
        print(f"mining {corpus}: {about}{cost.mined_tokens:,} tokens at {cost.tokens_per_second:,.0f} tokens/s")
        stages = ", ".join(
            f"{stage} {spoken_time(seconds)}".replace(" ", _JOINED) for stage, seconds in cost.seconds.items()
        )
        print(f"  time        about {spoken_time(cost.total_seconds)}:")
        print(fill(stages, 96, initial_indent=_INDENT, subsequent_indent=_INDENT).replace(_JOINED, " "))
        print(f"  memory      {cost.state_bytes / 1e6:,.1f} MB of state beside the model and one batch")
        if cost.note is not None:
            print("  note        " + cost.note.replace("; ", f";\n{_INDENT}"))


def _spoken_layer(memories: int, experts: dict[str, Any] | None) -> str:
    if experts is None:
        return f"{memories:,} memories"
    shared = "".join(f" + {width:,} shared" for width in experts["shared"])
    return f"{memories:,} memories ({experts['routed']} experts of {experts['memories']:,}{shared})"
