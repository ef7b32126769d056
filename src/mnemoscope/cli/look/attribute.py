"""`mnemoscope attribute`: which memories made a model prefer one next token to another."""

from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli import conditions
from mnemoscope.cli.progress import loading, reporting
from mnemoscope.foundation.options.mining_options import AUTO
from mnemoscope.foundation.options.model_options import ModelOptions, check_names
from mnemoscope.foundation.options.prompt_file import read_prompts

_ORDERS = ("ablation", "attribution", "direct")


def attribute(
    model: arg.Model,
    prompt: arg.PromptOrFile = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TEXT", help="The next word asked about, with its space.  [default: the model's]"
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="TEXT|mean", help="The word it is compared with.  [default: the next best]")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSONL of prompt (or messages), for, against: what they share."),
    ] = None,
    position: Annotated[
        int | None, typer.Option(metavar="N", help="The position whose next token is asked about.  [default: the last]")
    ] = None,
    chat: arg.Chat = False,
    messages: arg.MessagesFile = None,
    whole: arg.Whole = False,
    by: Annotated[str, typer.Option(metavar="|".join(_ORDERS), help="The order of the list.")] = "ablation",
    singles: Annotated[int, typer.Option(metavar="N", help="Memories switched off one by one.")] = 128,
    top: arg.Listed = 128,
    atlas: Annotated[
        Path | None, typer.Option(metavar="ATLAS", help="An atlas of this model: labels, promoted tokens, triggers.")
    ] = None,
    save_list: arg.SaveList = None,
    seed: arg.ControlSeed = 0,
    dtype: arg.Dtype = "float32",
    device: arg.Device = AUTO,
    *,
    opening: ModelOptions,
    fail_if: Annotated[
        str | None, conditions.fail_if_option(conditions.ATTRIBUTE, conditions.ATTRIBUTE_PROMPTS)
    ] = None,
    json: arg.Json = False,
) -> None:
    """Show which memories made a model prefer a token.

    The difference of the two logits as a sum over embedding, attention and memories; each memory's attribution by one
    backward pass; what switching it off does; and the same for many together, beside others that are as strong.

    Example: mnemoscope attribute builtin:pydocs "Return a list of" --against " strings"
    """
    arg.one_of(_ORDERS, by=by)
    arg.at_least(0, singles=singles, top=top, seed=seed)
    given = arg.chat_or_text(prompt, chat=chat, messages=messages, whole=whole)
    alone = {"for": target, "against": against, "position": position, "chat": chat or None}
    arg.one_prompt_or_file(given, prompts, **alone)
    check_names(model, opening)
    condition = conditions.read_condition(
        fail_if, conditions.ATTRIBUTE if prompts is None else conditions.ATTRIBUTE_PROMPTS
    )
    rows = None if prompts is None else read_prompts(prompts)
    arg.check_atlases(atlas)
    from mnemoscope import attribution
    from mnemoscope.atlas import open_atlas
    from mnemoscope.models import load_model

    opened = None if atlas is None else open_atlas(atlas)
    with loading(model):
        loaded = load_model(model, dtype=dtype, device=device, **opening.keywords())
    with reporting() as progress:
        if rows is not None:
            answer: attribution.Attribution | attribution.PromptsAttribution = attribution.attribute_prompts(
                loaded, rows, top=top, atlas=opened, seed=seed, progress=progress
            )
        else:
            assert given is not None
            answer = attribution.attribute(
                loaded,
                loaded.prompt_text(given, whole=whole),
                target=target,
                against=against,
                position=position,
                by=by,  # type: ignore[arg-type]
                singles=singles,
                top=top,
                atlas=opened,
                seed=seed,
                progress=progress,
            )
    facts = conditions.show(answer, conditions.attribute_facts, as_json=json, save_list=save_list)
    conditions.fail_where(condition, facts)
