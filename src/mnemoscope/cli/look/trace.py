"""`mnemoscope trace`: a prompt's prediction layer by layer, its dominant memories, and the effect of changing
memories.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import loading
from mnemoscope.cli.runner import emit, print_shown, terminal_columns
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.mining_options import AUTO
from mnemoscope.foundation.options.model_options import ModelOptions, check_names


def trace(
    model: arg.Model,
    prompt: arg.PromptOrFile = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CHANGE",
            help="L10.M222=0 sets an activation (coefficient), L10.M222*2 scales it; at the last position:"
            " L10.M222=0@last; from position 5 on: L10.M222=0@5; of many: L3=0, L5.M0-19=0, @FILE=0 (a saved list)."
            " May be given several times; shows before and after.",
            show_default=False,
        ),
    ] = None,
    generate: Annotated[int, typer.Option(metavar="N", help="Go on for N tokens, or to the end of the text.")] = 0,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="Of that continuation; 0 always takes the best token.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of a continuation with a temperature above 0.")] = 0,
    position: Annotated[
        int | None, typer.Option(metavar="N", help="The position whose layers are shown.  [default: the last]")
    ] = None,
    chat: arg.Chat = False,
    messages: arg.MessagesFile = None,
    whole: arg.Whole = False,
    top: Annotated[int, typer.Option(metavar="K", help="Predictions of each stream (--json gives all).")] = 10,
    memories: Annotated[int, typer.Option(metavar="K", help="Dominant memories of each layer in --json.")] = 10,
    figure1: Annotated[
        int | None,
        typer.Option(metavar="LAYER", help="Draw the paper's Figure 1 for this layer, into --out.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of --figure1: a file in .svg, .png or .pdf.", show_default=False),
    ] = None,
    dtype: arg.Dtype = "float32",
    device: arg.Device = AUTO,
    *,
    opening: ModelOptions,
    json: arg.Json = False,
) -> None:
    """Show how a model arrives at its prediction.

    After every token: what comes next, and from which layer on that is decided. For one position: what the residual,
    the feed-forward layer and the output of every layer predict, and which memories contribute most, with their votes.
    With --set: all of this before and after the change. With --figure1 the layer is drawn, too: the keys that the
    prefix meets, their activations, the weighted values and their sum (with --set: after the change). A space inside a
    token shows as · and a line break as ⏎.

    Example: mnemoscope trace builtin:pydocs "Return a list of" --set L5.M25=0 --generate 10
    """
    arg.at_least(0, generate=generate, temperature=temperature, memories=memories, seed=seed)
    arg.at_least(1, top=top)
    if (figure1 is None) != (out is None):
        raise OptionError("--figure1 LAYER and --out FILE go together: give both")
    given = arg.chat_or_text(prompt, chat=chat, messages=messages, whole=whole)
    if given is None:
        raise OptionError("give PROMPT, or --messages FILE")
    from mnemoscope.foundation.memory_changes import interventions_of

    check_names(model, opening)
    interventions_of(changes)  # a wrong one is told before the model is loaded
    if out is not None:
        from mnemoscope.show.figures import figure1 as pictures

        pictures.check_ending(out)
    from mnemoscope import tracing
    from mnemoscope.models import load_model

    with loading(model):
        loaded = load_model(model, dtype=dtype, device=device, **opening.keywords())
    asked, parsed = loaded.prompt_text(given, whole=whole), interventions_of(changes, of=loaded)
    script = tracing.as_python(model, asked, parsed, opening=opening)
    drawn = {}
    if figure1 is not None and out is not None:
        picture = pictures.figure1(loaded, asked, figure1, position=position, interventions=parsed)
        drawn = {"figure1": picture.numbers, "file": str(picture.save(out))}
        print(f"{out}: Figure 1 of layer {figure1}", file=sys.stderr)
    if parsed:
        both = tracing.compare(
            loaded, asked, parsed, top=top, memories=memories, tokens=generate, temperature=temperature, seed=seed
        )
        with tracing.for_terminal(terminal_columns()):
            text = both.text(position=position)
        if json:
            compared = both.to_dict()
            before = compared.pop("before")
            emit({"trace": before, "comparison": compared, "generation": None, "python": script, **drawn})
        else:
            print_shown(text)
        return
    traced = tracing.trace(loaded, asked, top=top, memories=memories)
    with tracing.for_terminal(terminal_columns()):
        text = traced.text(position=position)
    steps = tuple(tracing.generate(loaded, asked, tokens=generate, temperature=temperature, seed=seed))
    if json:
        generation = [step.to_dict() for step in steps] if generate else None
        emit({"trace": traced.to_dict(), "comparison": None, "generation": generation, "python": script, **drawn})
        return
    print_shown(text)
    if generate:
        print("\n".join(["", "Continued:", *tracing.continuation_lines(steps)]))
