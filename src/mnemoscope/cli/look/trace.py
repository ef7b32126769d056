"""`mnemoscope trace`: a prompt's prediction layer by layer, its dominant memories, and the effect of changing
memories.
"""

import sys
from typing import Any

from mnemoscope.cli.progress import load_shown
from mnemoscope.cli.runner import emit, print_shown, terminal_columns
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.model_options import check_names
from mnemoscope.foundation.options.prompt_options import EACH, TraceOptions
from mnemoscope.foundation.origin import made_by


def trace(options: TraceOptions, *, json: bool) -> None:
    """Show how a model arrives at its prediction.

    After every token: what comes next, and from which layer on that is decided. For one position: what the residual,
    the feed-forward layer and the output of every layer predict, and which memories contribute most, with their votes.
    With --set: all of this before and after the change. With --figure1 the layer is drawn, too: the keys that the
    prefix meets, their activations, the weighted values and their sum (with --set: after the change). A space inside a
    token shows as · and a line break as ⏎.

    A model that reads sentences whole is asked what stands at the mask.

    Example: mnemoscope trace builtin:pydocs "Return a list of" --set L5.M25=0 --generate 10
    """
    model, out, figure1, position = options.model, options.out, options.figure1, options.position
    given = options.asked.read(options.prompt, whole=options.whole)
    if given is None:
        raise OptionError("give PROMPT, or --messages FILE")
    from mnemoscope.foundation.memory_changes import interventions_of

    check_names(model, options.loading.opening)
    interventions_of(options.changes)  # a wrong one is told before the model is loaded
    if out is not None:
        from mnemoscope.show.figures import figure1 as pictures

        pictures.check_ending(out)
    from mnemoscope import tracing
    from mnemoscope.foundation.formatting import Table, show_token

    loaded = load_shown(model, options.loading).with_source(options.source)
    if options.mask == EACH:
        found = tracing.mask_each(loaded, asked := loaded.prompt_text(given))
        origin = made_by(model=loaded.fingerprint, atlas=None, options={"prompt": asked, "mask": EACH}, seed=None)
        with tracing.for_terminal(terminal_columns()):
            rows = found.rows()
            cells = [[f"{one:.3f}" if type(one) is float else show_token(str(one)) for one in row] for row in rows]
            text = "\n".join(Table(found.columns, cells, (8, 20, 20, 5, 5, 11, 6)).lines())
        emit({"model": loaded.spec, "masked": found.to_dicts(), "made_by": origin}) if json else print_shown(text)
        return
    mask = None if options.mask is None else int(options.mask)
    asked = loaded.prompt_text(given, whole=options.whole, mask=mask)
    parsed = interventions_of(options.changes, of=loaded)
    script = tracing.as_python(model, asked, parsed, source=options.source, opening=options.loading.opening)
    drawn = {}
    if figure1 is not None and out is not None:
        picture = pictures.figure1(loaded, asked, figure1, position=position, interventions=parsed)
        drawn = {"figure1": picture.numbers, "file": str(picture.save(out))}
        print(f"{out}: Figure 1 of layer {figure1}", file=sys.stderr)
    shown: dict[str, Any] = {"top": options.top, "memories": options.memories}
    written: dict[str, Any] = {"tokens": options.generate, "temperature": options.temperature, "seed": options.seed}
    if parsed:
        both = tracing.compare(loaded, asked, parsed, **shown, **written)
        with tracing.for_terminal(terminal_columns()):
            text = both.text(position=position)
        if json:
            compared = both.to_dict()
            before = compared.pop("before")
            emit({"trace": before, "comparison": compared, "generation": None, "python": script, **drawn})
        else:
            print_shown(text)
        return
    traced = tracing.trace(loaded, asked, **shown)
    with tracing.for_terminal(terminal_columns()):
        text = traced.text(position=position)
    steps = tuple(tracing.generate(loaded, asked, **written)) if options.generate else ()
    if json:
        generation = [step.to_dict() for step in steps] if options.generate else None
        emit({"trace": traced.to_dict(), "comparison": None, "generation": generation, "python": script, **drawn})
        return
    print_shown(text)
    if options.generate:
        print("\n".join(["", "Continued:", *tracing.continuation_lines(steps)]))
