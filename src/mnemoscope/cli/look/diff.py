"""`mnemoscope diff`: which memories made two models, or one model on two prompts, answer differently."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli import conditions
from mnemoscope.cli.progress import loading, reporting
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.chat_prompt import other_turn
from mnemoscope.foundation.options.mining_options import AUTO
from mnemoscope.foundation.options.model_options import ModelOptions, check_names
from mnemoscope.foundation.options.prompt_file import check_second, read_prompts

_PATCHES = ("contribution", "coefficient")


def diff(
    model: arg.Model,
    prompt: arg.PromptOrFile = None,
    other: Annotated[str | None, typer.Option(metavar="MODEL", help="The second model.")] = None,
    other_adapter: Annotated[
        str | None, typer.Option(metavar="ID|FOLDER", help="The second is MODEL with this PEFT adapter.")
    ] = None,
    other_prompt: Annotated[
        str | None, typer.Option(metavar="PROMPT", help="The second is MODEL on this prompt (or last message).")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--for", metavar="TEXT", help="The second's answer.  [default: what it says]")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The first's answer.  [default: what it says]")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSONL of prompt (or messages), for, against, other_prompt."),
    ] = None,
    chat: arg.Chat = False,
    messages: arg.MessagesFile = None,
    both: Annotated[bool, typer.Option("--both", help="List those that pushed the other way, too.")] = False,
    patch: Annotated[
        str, typer.Option(metavar="|".join(_PATCHES), help="What is set back of a memory.")
    ] = "contribution",
    top: arg.Listed = 128,
    atlas: Annotated[
        Path | None, typer.Option(metavar="ATLAS", help="An atlas of one of the models: labels, tokens, triggers.")
    ] = None,
    seed: arg.ControlSeed = 0,
    dtype: arg.Dtype = "float32",
    device: arg.Device = AUTO,
    *,
    opening: ModelOptions,
    fail_if: Annotated[str | None, conditions.fail_if_option(conditions.DIFF, conditions.DIFF_PROMPTS)] = None,
    json: arg.Json = False,
) -> None:
    """Show which memories made two runs answer differently.

    The runs are of two models, or of one model on two prompts. The change of the two answers' logit difference as a sum
    over embedding, attention, memories and the final norm's scale; the memories whose push changed most; and how many
    of them, set back to what they did in the first run, make the second answer as the first, beside others that are as
    strong.

    Example: mnemoscope diff builtin:pydocs "Return a list of" --other-prompt "Return the name of"
    """
    arg.one_of(_PATCHES, patch=patch)
    arg.at_least(0, top=top, seed=seed)
    given = arg.chat_or_text(prompt, chat=chat, messages=messages)
    alone = {"other_prompt": other_prompt, "for": target, "against": against, "chat": chat or None}
    arg.one_prompt_or_file(given, prompts, **alone)
    condition = conditions.read_condition(fail_if, conditions.DIFF if prompts is None else conditions.DIFF_PROMPTS)
    rows = None if prompts is None else read_prompts(prompts)
    if rows is not None:
        check_second(rows, other, other_adapter)
    elif [other, other_adapter, other_prompt].count(None) != 2:
        raise OptionError("give one of --other, --other-adapter and --other-prompt")
    for name, adapter in ((model, opening.adapter), (other or model, other_adapter)):
        check_names(name, ModelOptions(adapter=adapter, tokenizer=opening.tokenizer))
    arg.check_atlases(atlas)
    from mnemoscope import attribution
    from mnemoscope.atlas import open_atlas
    from mnemoscope.models import load_model

    opened = None if atlas is None else open_atlas(atlas)
    with loading(model):
        loaded = load_model(model, dtype=dtype, device=device, **opening.keywords())
    with reporting() as progress:
        how: dict[str, Any] = {"both": both, "patch": patch, "top": top, "atlas": opened, "seed": seed}
        if rows is not None:
            answer: attribution.PromptsDifference | attribution.RunDifference = attribution.diff_prompts(
                loaded,
                rows,
                other=other,
                other_adapter=other_adapter,
                progress=progress,
                **how,
            )
        else:
            assert given is not None
            answer = attribution.diff(
                loaded,
                given,
                other=other,
                other_adapter=other_adapter,
                other_prompt=other_turn(given, other_prompt),
                target=target,
                against=against,
                progress=progress,
                **how,
            )
    conditions.show(answer, conditions.diff_facts, condition, as_json=json)
