"""`mnemoscope bench`: how fast mining is against the bare forward pass and against what people write."""

from typing import Annotated, Any

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit


def bench(
    model: Annotated[
        str,
        typer.Option(metavar="builtin|gpt2-small|both", help="The built-in model, or a random one of GPT-2's shape."),
    ] = "both",
    rounds: Annotated[int, typer.Option(metavar="N", help="Groups of four batches that are timed.")] = 10,
    warm: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens mined before anything is timed.")] = 200_000,
    json: arg.Json = False,
    debug: arg.Debug = False,
) -> None:
    """Measure mining against the bare forward pass and two common loops, in one run; and the value pass.

    The bare forward is given whole, and stopped where mining stops, which is equal work. Ratios are what counts:
    absolute speeds differ from machine to machine. Takes some minutes.

    Example: mnemoscope bench --model builtin
    """
    arg.one_of(("builtin", "gpt2-small", "both"), model=model)
    arg.at_least(1, rounds=rounds, warm=warm)
    from mnemoscope.cli.benchmark import measure

    names = ("builtin", "gpt2-small") if model == "both" else (model,)
    with reporting() as progress:
        results = [measure(name, rounds=rounds, warm=warm, progress=progress) for name in names]
    if json:
        emit({"results": results})
        return
    for result in results:
        _draw(result)


def _draw(result: dict[str, Any]) -> None:
    print(f"{result['model']}: {result['tokens']:,} tokens timed, batches of {result['batch_tokens']:,} positions")
    for name, rate in result["tokens_per_second"].items():
        print(f"  {name:<16}{rate:>10,.0f} tokens/s   {result['share_of_bare'][name]:.2f} of the bare forward")
    stopped = result["mining_over_stopped_forward"]
    print(f"  mining is {stopped:.2f} of the stopped forward (equal work: to the last layer's coefficients)")
    user, research = result["mining_over_user_loop"], result["mining_over_research_loop"]
    print(f"  mining is {user:.2f} x the user loop, {research:.2f} x the research loop")
    overlap = result["bfloat16_overlap"]
    print(f"  bfloat16 is {result['bfloat16_speedup']:.2f} x float32, and shares {overlap:.3f} of its triggers")
    own, ceiling = result["values"]["value pass"], result["values"]["matrix product"]
    print(f"  values: {own:,.0f}/s, {result['values']['ratio']:.2f} of the {ceiling:,.0f}/s of the matrix product")
