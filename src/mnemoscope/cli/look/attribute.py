"""`mnemoscope attribute`: which memories made a model prefer one next token to another."""

import sys

from mnemoscope.cli import arguments as arg
from mnemoscope.cli import conditions
from mnemoscope.cli.progress import load_shown, reporting
from mnemoscope.foundation.options.model_options import check_names
from mnemoscope.foundation.options.prompt_file import read_prompts
from mnemoscope.foundation.options.prompt_options import ATTRIBUTE, ATTRIBUTE_PROMPTS, AttributeOptions


def attribute(options: AttributeOptions, *, json: bool) -> None:
    """Show which memories made a model prefer a token.

    The difference of the two logits as a sum over embedding, attention and memories; each memory's attribution by one
    backward pass; what switching it off does, also to other memories; and the same for many together, beside others
    that are as strong.

    Example: mnemoscope attribute builtin:pydocs "Return a list of" --against " strings"
    """
    check_names(options.model, options.loading.opening)
    given, prompts = options.asked.read(options.prompt, whole=options.whole), options.prompts
    condition = conditions.read_condition(options.fail_if, ATTRIBUTE if prompts is None else ATTRIBUTE_PROMPTS)
    rows = None if prompts is None else read_prompts(prompts)
    arg.check_atlases(options.atlas)
    if options.graph is not None:
        from mnemoscope.sharing.graph import graph_folder, write_graph

        graph_folder(options.graph, options.atlas)
    from mnemoscope.attribution import Attribution, PromptsAttribution, attribute_prompts
    from mnemoscope.attribution import attribute as run

    loaded = load_shown(options.model, options.loading)
    answer: Attribution | PromptsAttribution
    with reporting() as progress:
        if rows is not None:
            answer = attribute_prompts(loaded, rows, progress=progress, **options.taken_by(attribute_prompts))
        else:
            assert given is not None
            asked = loaded.prompt_text(given, whole=options.whole)
            answer = run(loaded, asked, progress=progress, **options.taken_by(run))
    facts = conditions.show(answer, conditions.attribute_facts, as_json=json, save_list=options.save_list)
    if options.graph is not None and isinstance(answer, Attribution):
        write_graph(answer, options.graph, atlas=options.atlas)
        print(f"{options.graph}: the graph, for circuit-tracer's pages", file=sys.stderr)
    conditions.fail_where(condition, facts)
