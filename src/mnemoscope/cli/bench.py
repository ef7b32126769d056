"""`mnemoscope bench`: how fast mining is against the bare forward pass and against what people write."""

from typing import Annotated

import typer

from mnemoscope.cli.frame import Debug, Json, at_least, emit, one_of
from mnemoscope.cli.progress import reporting


def bench(
    model: Annotated[
        str, typer.Option(metavar="builtin|gpt2-small|both", help="The built-in model, or a random one of GPT-2's shape.")
    ] = "both",
    rounds: Annotated[int, typer.Option(metavar="N", help="Groups of four batches that are timed.")] = 10,
    warm: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens mined before anything is timed.")] = 200_000,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure mining against the bare forward pass and two common loops, in one run; and the value pass.

    Ratios are what counts: absolute speeds differ from machine to machine. Takes some minutes.

    Example: mnemoscope bench --model builtin
    """
    one_of("--model", model, ("builtin", "gpt2-small", "both"))
    at_least("--rounds", rounds, 1)
    at_least("--warm", warm, 1)
    from mnemoscope.mining.benchmark import measure

    names = ("builtin", "gpt2-small") if model == "both" else (model,)
    with reporting() as progress:
        results = [measure(name, rounds=rounds, warm=warm, progress=progress) for name in names]
    if json:
        emit({"results": results})
        return
    for result in results:
        print(f"{result['model']}: {result['tokens']:,} tokens timed, batches of {result['batch_tokens']:,} positions")
        for name, rate in result["tokens_per_second"].items():
            print(f"  {name:<28}{rate:>12,.0f} tokens/s   {result['share_of_bare'][name]:.2f} of the bare forward")
        print(f"  mining is {result['mining_over_user_loop']:.2f} x the user loop, "
              f"{result['mining_over_research_loop']:.2f} x the research loop")  # fmt: skip
        print(f"  bfloat16: {result['bfloat16_speedup']:.2f} x float32, top-50 overlap {result['bfloat16_overlap']:.3f}")
        values = result["values"]
        print(f"  values: {values['value pass']:,.0f}/s, {values['ratio']:.2f} of the matrix product's {values['matrix product']:,.0f}/s")
