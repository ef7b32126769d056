"""`mnemoscope attribute`: which memories made a model prefer one next token to another."""

from typing import Any

from mnemoscope.cli import arguments as arg
from mnemoscope.cli import conditions
from mnemoscope.cli.progress import loading, reporting
from mnemoscope.foundation.options.model_options import check_names
from mnemoscope.foundation.options.prompt_file import read_prompts
from mnemoscope.foundation.options.prompt_options import ATTRIBUTE, ATTRIBUTE_PROMPTS, AttributeOptions


def attribute(options: AttributeOptions, *, json: bool) -> None:
    """Show which memories made a model prefer a token.

    The difference of the two logits as a sum over embedding, attention and memories; each memory's attribution by one
    backward pass; what switching it off does; and the same for many together, beside others that are as strong.

    Example: mnemoscope attribute builtin:pydocs "Return a list of" --against " strings"
    """
    model, prompts, atlas = options.model, options.prompts, options.atlas
    given = options.asked.read(options.prompt, whole=options.whole)
    alone = {"for": options.target, "position": options.position, "chat": options.asked.chat or None}
    arg.one_prompt_or_file(given, prompts, against=options.against, **alone)
    check_names(model, options.loading.opening)
    condition = conditions.read_condition(options.fail_if, ATTRIBUTE if prompts is None else ATTRIBUTE_PROMPTS)
    rows = None if prompts is None else read_prompts(prompts)
    arg.check_atlases(atlas)
    from mnemoscope import attribution
    from mnemoscope.atlas import open_atlas
    from mnemoscope.models import load_model

    opened = None if atlas is None else open_atlas(atlas)
    with loading(model):
        loaded = load_model(model, **options.loading.keywords())
    answer: attribution.Attribution | attribution.PromptsAttribution
    with reporting() as progress:
        shared: dict[str, Any] = {"atlas": opened, "progress": progress}
        if rows is not None:
            taken = options.taken_by(attribution.attribute_prompts)
            answer = attribution.attribute_prompts(loaded, rows, **taken | shared)
        else:
            assert given is not None
            asked = loaded.prompt_text(given, whole=options.whole)
            answer = attribution.attribute(loaded, asked, **options.taken_by(attribution.attribute) | shared)
    facts = conditions.show(answer, conditions.attribute_facts, as_json=json, save_list=options.save_list)
    conditions.fail_where(condition, facts)
