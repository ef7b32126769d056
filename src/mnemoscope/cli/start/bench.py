"""`mnemoscope bench`: the speed of mining relative to the bare forward pass and to common loops."""

from typing import Annotated, Any

import typer

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.foundation.options.mining_options import AUTO, DTYPES
from mnemoscope.foundation.options.model_options import AS_USUAL, check_names


def bench(
    model: Annotated[
        str,
        typer.Option(
            metavar="SPEC|gpt2-small|8b|experts|both",
            help="A model as in mine (builtin: the built-in one), a random one of GPT-2's or of Llama 3 8B's shape, a"
            " small random mixture of experts; both: builtin and gpt2-small.",
        ),
    ] = "both",
    rounds: Annotated[int, typer.Option(metavar="N", help="Groups of four batches that are timed.")] = 10,
    warm: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens mined before anything is timed.")] = 200_000,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="|".join(DTYPES), help="[default: float32; of 8b: bfloat16]"),
    ] = None,
    device: arg.Device = AUTO,
    json: arg.Json = False,
) -> None:
    """Measure how fast mining is.

    Against the bare forward pass and two common loops, in one run; and the value pass. The bare forward pass is timed
    whole, and stopped where mining stops, which is equal work. Only ratios count: absolute speeds differ from machine
    to machine. Takes some minutes. 8b takes 16 GB of memory, and random tokens.

    Example: mnemoscope bench --model builtin
    """
    if dtype is not None:
        arg.one_of(DTYPES, dtype=dtype)
    arg.at_least(1, rounds=rounds, warm=warm)
    if model not in ("gpt2-small", "8b", "experts", "both", "builtin"):
        check_names(model, AS_USUAL)
    from mnemoscope.bench.documentation import measure_text
    from mnemoscope.bench.shapes import measure_shape
    from mnemoscope.models import device_of

    place = device_of(device)
    results = []
    with reporting() as progress:
        common: dict[str, Any] = {"device": place, "rounds": rounds, "warm": warm, "progress": progress}
        for name in ("builtin", "gpt2-small") if model == "both" else (model,):
            if name in ("8b", "experts"):
                results.append(measure_shape(name, dtype=dtype, **common))
            else:
                results.append(measure_text(name, dtype=dtype or "float32", **common))
    if json:
        emit({"results": results})
        return
    for result in results:
        _draw(result)


def _draw(result: dict[str, Any]) -> None:
    print(
        f"{result['model']}: {result['dtype']} on {result['device']}, {result['tokens']:,} tokens timed, "
        f"batches of {result['batch_tokens']:,} positions"
    )
    for name, rate in result["tokens_per_second"].items():
        print(f"  {name:<16}{rate:>10,.0f} tokens/s   {result['share_of_bare'][name]:.2f} of the bare forward")
    stopped = result["mining_over_stopped_forward"]
    print(f"  mining is {stopped:.2f} of the stopped forward (equal work: to the last layer's coefficients)")
    user, research = result["mining_over_user_loop"], result["mining_over_research_loop"]
    print(f"  mining is {user:.2f} x the user loop, {research:.2f} x the research loop")
    if "bfloat16_speedup" in result:
        overlap = result["bfloat16_overlap"]
        print(f"  bfloat16 is {result['bfloat16_speedup']:.2f} x float32, and shares {overlap:.3f} of its triggers")
    for name, work in (("values", "value pass"), ("neighbours", "neighbours")):
        if name in result:
            own, ceiling = result[name][work], result[name]["matrix product"]
            print(f"  {name}: {own:,.0f}/s, {result[name]['ratio']:.2f} of the {ceiling:,.0f}/s of the matrix product")
    if "teraflops" in result:
        rates = ", ".join(f"{name} {rate:,.2f}" for name, rate in result["teraflops"].items())
        print(f"  teraflops of weights' products: {rates}")
    if same := result.get("same_as_on_the_host"):
        shared, difference = same["shared_triggers"], same["coefficient_difference"]
        print(f"  a small model has {shared:.3f} of the host's triggers, coefficients within {difference:.1e}")
