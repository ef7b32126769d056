"""`mnemoscope mcp`: atlases, and perhaps a model, as tools for agents."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from mnemoscope.cli import arguments as arg
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, like, option
from mnemoscope.foundation.options.mining_options import LoadOptions
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions


class AgentOptions(DeclaredOptions):
    atlases: list[Path] = option(help="Folders, or hf://datasets/USER/NAME.", metavar="ATLAS", argument=True)
    model: str | None = option(None, "The first one's: for trace, attribute and test_memories.")
    device: str = like(LoadOptions, "device")
    opening: ModelOptions = AS_USUAL


def mcp(options: AgentOptions, *, json: bool) -> None:
    """Give agents tools over atlases (MCP, stdio).

    A server on standard input and output that an agent's client starts: search, show, layer, trace, attribute, compare
    and test_memories, over these atlases only. None takes a path or writes; a call reads 4,096 tokens and takes a
    minute at most. Needs the extra: pip install 'mnemoscope[mcp]'

    Example: mnemoscope mcp atlas --model gpt2
    """
    if json:
        raise OptionError("--json does not go with mcp: standard output belongs to the protocol; leave it out")
    if find_spec("mcp") is None:
        raise OptionError("mcp needs the package mcp, which is not installed; pip install 'mnemoscope[mcp]'")
    arg.check_atlases(*options.atlases)
    arg.check_mined(options.atlases[0], options.model, options.opening)
    from mnemoscope.agents.server import load_mined, serve

    load = None if options.model is None else partial(load_mined, options.model, options.device, options.opening)
    serve(options.atlases, load)
