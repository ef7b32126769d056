"""`mnemoscope diff`: which memories made two models, or one model on two prompts, answer differently."""

from functools import partial
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
from mnemoscope.foundation.options.prompt_file import check_restored, check_second, read_prompts

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
        str | None, typer.Option("--for", metavar="TEXT", help="The second's answer.  [default: its prediction]")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The first's answer.  [default: its prediction]")
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
    generate: Annotated[
        int, typer.Option(metavar="N", help="Two models write N tokens each from where they part.")
    ] = 0,
    restored: Annotated[
        int | None,
        typer.Option(metavar="K", help="The second writes, or is saved, with the K first memories as in the first."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save the second model, or its LoRA, with the weights of these restored."),
    ] = None,
    save_list: arg.SaveList = None,
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
    arg.at_least(0, top=top, seed=seed, generate=generate)
    arg.at_least(1, restored=restored)
    given = arg.chat_or_text(prompt, chat=chat, messages=messages)
    alone = {"other_prompt": other_prompt, "for": target, "against": against, "chat": chat or None}
    alone |= {"generate": str(generate) if generate else None}
    arg.one_prompt_or_file(given, prompts, **alone)
    condition = conditions.read_condition(fail_if, conditions.DIFF if prompts is None else conditions.DIFF_PROMPTS)
    rows = None if prompts is None else read_prompts(prompts)
    if rows is not None:
        check_second(rows, other, other_adapter)
    elif [other, other_adapter, other_prompt].count(None) != 2:
        raise OptionError("give one of --other, --other-adapter and --other-prompt")
    two_prompts = other is None and other_adapter is None
    check_restored(restored or 0, top, two_prompts=two_prompts, generate=generate)
    if restored is None and save is not None:
        raise OptionError("--save needs --restored K: how many of the first memories are put back")
    if restored is not None and save is None and not generate and fail_if is None:
        raise OptionError("--restored needs --generate N, --save FOLDER or --fail-if EXPR: what is done with these")
    for name, adapter in ((model, opening.adapter), (other or model, other_adapter)):
        check_names(name, ModelOptions(adapter=adapter, tokenizer=opening.tokenizer))
    arg.check_atlases(atlas)
    from mnemoscope import attribution

    if save is not None:
        attribution.check_free(save)
    from mnemoscope.atlas import open_atlas
    from mnemoscope.models import load_model

    opened = None if atlas is None else open_atlas(atlas)
    with loading(model):
        loaded = load_model(model, dtype=dtype, device=device, **opening.keywords())
        second = None if two_prompts else attribution.second_model(loaded, other, other_adapter)
        if second is not None and save is not None:
            attribution.check_savable(second)
    with reporting() as progress:
        how: dict[str, Any] = {"both": both, "patch": patch, "top": top, "atlas": opened, "seed": seed}
        if rows is not None:
            answer: attribution.PromptsDifference | attribution.RunDifference = attribution.diff_prompts(
                loaded,
                rows,
                other=second,
                progress=progress,
                **how,
            )
        else:
            assert given is not None
            answer = attribution.diff(
                loaded,
                given,
                other=second,
                other_prompt=other_turn(given, other_prompt),
                target=target,
                against=against,
                generate=generate,
                restored=(restored or 0) if generate else 0,
                progress=progress,
                **how,
            )
    read = partial(conditions.diff_facts, restored=restored)
    facts = conditions.show(answer, read, as_json=json, save_list=save_list)
    if second is not None and restored is not None and save is not None:
        if not (names := answer.towards(restored)):
            raise OptionError(f"no memory pushed towards the second's answer, so that {save} is not written")
        with reporting() as progress:
            progress("restoring", 0, None, f"{len(names)} memories, to be saved as {save}")
            attribution.restore(second, loaded, names, save=save)
    conditions.fail_where(condition, facts)
