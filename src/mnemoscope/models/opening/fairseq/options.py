"""The options of a fairseq checkpoint (`args`), read field by field, as the shape of its network.

Old and new spellings have fairseq's own meaning; the architecture's name is ignored. An unknown option that would
change the network is refused. Weights are used only for the number of words.
"""

import re
from itertools import count, pairwise, takewhile
from typing import Any

from torch import Tensor

from mnemoscope.errors import ModelDamaged, ModelUnsupported
from mnemoscope.models.modules.fairseq_decoder import ACTIVATIONS, DecoderShape
from mnemoscope.models.modules.projections import Bands

_UNKNOWN = (
    *("character_embeddings", "decoder_learned_pos", "no_token_positional_embeddings"),
    *("no_dec_token_positional_embeddings", "layernorm_embedding", "decoder_layers_to_keep", "remove_head"),
    *("scale_attn", "scale_heads", "scale_fc", "scale_resids", "base_layers", "add_adapters", "alibi"),
)
_READ = {
    "decoder_embed_dim",
    "decoder_attention_heads",
    "activation_fn",
    "decoder_input_dim",
    "decoder_output_dim",
    "adaptive_input",
    "adaptive_input_cutoff",
    "adaptive_input_factor",
    "adaptive_softmax_cutoff",
    "adaptive_softmax_factor",
    "tie_adaptive_weights",
    "tie_adaptive_proj",
    "no_tie_adaptive_proj",
    "decoder_layers",
    "share_decoder_input_output_embed",
    "decoder_normalize_before",
    "decoder_ffn_embed_dim",
    "decoder_final_norm",
    "no_decoder_final_norm",
    "no_scale_embedding",
}
_OF_NETWORK = re.compile(r"^(decoder|adaptive|tie|share|scale)_|embed|norm|_pos(_|$)|activation|alibi|attn|rotary|glu")
_HARMLESS = re.compile(
    r"drop|noise|checkpoint|offload"  # in training alone, or for its memory
    r"|clip_norm|batch_norm|^char|_path$"  # of gradients, of batches; without character_embeddings; where it began
)
_CONTEXT = 1024
_FINAL_NORM_SINCE = 3
"""The first version of the decoder whose final norm counts."""


class Options:
    """The fields of `args`, each read as its type (else ModelDamaged); `where` names the checkpoint in errors."""

    def __init__(self, fields: dict[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def _value(self, name: str, default: Any, kinds: tuple[type, ...], expected: str) -> Any:
        value = default if self.fields.get(name) is None else self.fields[name]
        if type(value) not in kinds:
            raise self.wrong(name, expected)
        return value

    def number(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default, (int, float), "a whole number above 0")
        if value < 1 or not float(value).is_integer():
            raise self.wrong(name, "a whole number above 0")
        return int(value)

    def factor(self, name: str) -> float:
        value = self._value(name, 4, (int, float), "a factor of at least 1")
        if not 1 <= value < 1e6:
            raise self.wrong(name, "a factor of at least 1")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        return bool(self._value(name, default, (bool, int), "true or false"))

    def word(self, name: str, default: str) -> str:
        return str(self._value(name, default, (str,), "a name")) or default

    def cutoffs(self, name: str) -> tuple[int, ...]:
        """Ids at which bands begin, ascending, as in `'20000,60000'`; empty without the option."""
        value = self.fields.get(name)
        if value is None:
            return ()
        parts = value.strip(" ()[]").rstrip(", ").split(",") if isinstance(value, str) else value
        try:
            starts = tuple(int(part) for part in parts)
        except (TypeError, ValueError, OverflowError):
            starts = ()
        if not starts or starts[0] < 1 or any(a >= b for a, b in pairwise(starts)):
            raise self.wrong(name, "ascending numbers of words, as in '20000,60000'")
        return starts

    def wrong(self, name: str, expected: str) -> ModelDamaged:
        value = repr(self.fields.get(name, "missing"))[:60]
        return ModelDamaged(f"{self.where}: its option {name!r} is {value}, not {expected}")


def shape_of(options: Options, weights: dict[str, Tensor], *, version: int) -> DecoderShape:
    """Raises ModelDamaged or ModelUnsupported."""
    where = options.where
    for name, value in options.fields.items():
        strange = name not in _READ and _OF_NETWORK.search(name) and not _HARMLESS.search(name)
        if value and (strange or name in _UNKNOWN):
            raise ModelUnsupported(f"{where} was trained with {name!r}, which cannot be read")
    hidden, heads = options.number("decoder_embed_dim"), options.number("decoder_attention_heads")
    if hidden % heads or hidden < 4:
        raise ModelDamaged(f"{where}: hidden size {hidden} does not go with {heads} attention heads")
    activation = options.word("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        raise ModelUnsupported(f"{where} uses activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
    plain, adaptive = "decoder.embed_tokens.weight", "decoder.embed_tokens.embeddings.{}.0.weight"
    names = [plain] if plain in weights else list(takewhile(weights.__contains__, map(adaptive.format, count())))
    if not names:
        raise ModelDamaged(f"{where} lacks the weights of its input ({adaptive.format(0)!r}); take a complete copy")
    rows = sum(weights[name].shape[0] for name in names if weights[name].dim())
    input_width, output_width = (options.number(f"decoder_{end}_dim", hidden) for end in ("input", "output"))
    adaptive_input = options.flag("adaptive_input")
    input_bands = _bands(options, "adaptive_input", rows, input_width) if adaptive_input else None
    softmax = "adaptive_softmax_cutoff" in options
    output_bands = _bands(options, "adaptive_softmax", rows, output_width) if softmax else None
    tied = options.flag("tie_adaptive_weights") and softmax
    if tied and (input_bands != output_bands or not hidden == input_width == output_width):
        raise ModelDamaged(f"{where} ties its adaptive softmax to its input, but their bands or widths differ")
    shared = options.flag("share_decoder_input_output_embed") and not softmax
    if shared and (adaptive_input or input_width != output_width):
        raise ModelDamaged(f"{where} shares its embedding with its head, but their widths differ")
    # Without the option fairseq assumes it: its language models were all trained with it.
    pre_norm = options.flag("decoder_normalize_before", default=True)
    # Older checkpoints use `decoder_final_norm`; the oldest have neither option and no final norm.
    old = "no_tie_adaptive_proj" in options
    if pre_norm and "decoder_final_norm" in options:
        final_norm = options.flag("decoder_final_norm")
    else:
        final_norm = pre_norm and not old and not options.flag("no_decoder_final_norm")
    tied_projections = tied and old and not options.flag("no_tie_adaptive_proj")
    return DecoderShape(
        rows=rows,
        layers=options.number("decoder_layers"),
        hidden=hidden,
        memories=options.number("decoder_ffn_embed_dim"),
        heads=heads,
        context=options.number("max_target_positions", options.number("tokens_per_sample", _CONTEXT)),
        activation=activation,
        pre_norm=pre_norm,
        final_norm=final_norm and version >= _FINAL_NORM_SINCE,
        scaled=not options.flag("no_scale_embedding"),
        input_width=input_width,
        output_width=output_width,
        input_bands=input_bands,
        output_bands=output_bands,
        tied_words=tied or shared,
        tied_projections=tied_projections or (tied and options.flag("tie_adaptive_proj")),
    )


def _bands(options: Options, end: str, rows: int, width: int) -> Bands:
    """The bands of the input or the softmax; each is narrower than the one before by the factor."""
    cutoffs = options.cutoffs(f"{end}_cutoff")
    factor = options.factor(f"{end}_factor")
    if not cutoffs or cutoffs[-1] > rows:
        raise options.wrong(f"{end}_cutoff", f"numbers of words up to the {rows} that the checkpoint has")
    edges = cutoffs if cutoffs[-1] == rows else (*cutoffs, rows)
    widths = tuple(int(width // factor**band) for band in range(len(edges)))
    if end == "adaptive_input" and min(widths) < 1:  # a softmax may have such a band: its words are equally likely
        raise options.wrong(f"{end}_factor", f"a factor that leaves some of the width {width} in {len(edges)} bands")
    return Bands(edges, widths)
