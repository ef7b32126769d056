"""`mnemoscope diff`: which memories made two models, or one model on two prompts, answer differently."""

from functools import partial
from typing import Any

from mnemoscope.cli import arguments as arg
from mnemoscope.cli import conditions
from mnemoscope.cli.progress import load_shown, loading, reporting
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.chat_prompt import other_turn
from mnemoscope.foundation.options.model_options import ModelOptions, check_names
from mnemoscope.foundation.options.prompt_file import check_second, read_prompts
from mnemoscope.foundation.options.prompt_options import DIFF, DIFF_PROMPTS, DiffOptions


def diff(options: DiffOptions, *, json: bool) -> None:
    """Show which memories made two runs answer differently.

    The runs are of two models, or of one model on two prompts. The change of the two answers' logit difference as a sum
    over embedding, attention, memories and the final norm's scale; the memories whose push changed most; and how many
    of them, set back to what they did in the first run, make the second answer as the first, beside others that are as
    strong.

    Example: mnemoscope diff builtin:pydocs "Return a list of" --other-prompt "Return the name of"
    """
    model, prompts, opening = options.model, options.prompts, options.loading.opening
    other, other_adapter, restored, save = options.other, options.other_adapter, options.restored, options.save
    given = options.asked.read(options.prompt)
    condition = conditions.read_condition(options.fail_if, DIFF if prompts is None else DIFF_PROMPTS)
    rows = None if prompts is None else read_prompts(prompts)
    if rows is not None:
        check_second(rows, other, other_adapter)
    for name, adapter in ((model, opening.adapter), (other or model, other_adapter)):
        check_names(name, ModelOptions(adapter=adapter, tokenizer=opening.tokenizer))
    arg.check_atlases(options.atlas)
    from mnemoscope import attribution

    if save is not None:
        attribution.check_free(save)
    loaded, second = load_shown(model, options.loading), None
    if other is not None or other_adapter is not None:
        with loading(other or model):
            second = attribution.second_model(loaded, other, other_adapter)
            if save is not None:
                attribution.check_savable(second)
    answer: attribution.PromptsDifference | attribution.RunDifference
    with reporting() as progress:
        shared: dict[str, Any] = {"other": second, "other_adapter": None, "progress": progress}
        if rows is not None:
            taken = options.taken_by(attribution.diff_prompts)
            answer = attribution.diff_prompts(loaded, rows, **taken | shared)
        else:
            assert given is not None
            shared["other_prompt"] = other_turn(given, options.other_prompt)
            shared["restored"] = (restored or 0) if options.generate else 0
            answer = attribution.diff(loaded, given, **options.taken_by(attribution.diff) | shared)
    read = partial(conditions.diff_facts, restored=restored)
    facts = conditions.show(answer, read, as_json=json, save_list=options.save_list)
    if second is not None and restored is not None and save is not None:
        if not (names := answer.towards(restored)):
            raise OptionError(f"no memory pushed towards the second's answer, so that {save} is not written")
        with reporting() as progress:
            progress("restoring", 0, None, f"{len(names)} memories, to be saved as {save}")
            attribution.restore(second, loaded, names, save=save)
    conditions.fail_where(condition, facts)
