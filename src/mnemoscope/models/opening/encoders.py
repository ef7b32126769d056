"""An encoder by itself, which has no head for tokens: that of an encoder-decoder (`--side encoder`), or a masked model
whose head was never stored, such as BERT as a retriever. Its keys can be read, its values stand for no words
(definitions.md, 7.2 and 7.3).
"""

import copy
from collections.abc import Iterable
from typing import Any, final

from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.foundation.options.model_options import SIDES
from mnemoscope.models.anatomy.anatomy import is_masked
from mnemoscope.models.modules.observed import takes, takes_source

DECODER, ENCODER = SIDES


@final
class EncoderAlone(nn.Module):
    """Gives its last stream where others give scores, so that keys and blocks are proved as those of every model."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.head, self.config = encoder, nn.Identity(), copy.copy(encoder.config)
        self.config.is_encoder_decoder = False
        vars(self.config).pop("num_decoder_layers", None)

    def get_input_embeddings(self) -> Any:
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor) -> Tensor:
        stream: Tensor = self.head(self.encoder(input_ids=input_ids)[0])
        return stream


def encoder_alone(model: Any, side: str | None, missing: Iterable[str] = ()) -> EncoderAlone | None:
    """What is read of a model without its head: the encoder asked for, or one whose head is not there or `missing`, as
    all the stored weights are that are. None where the model is read whole, or a part that is read is missing.
    """
    masked, names = is_masked(model.config), set(missing)
    paired = takes_source(model) or model.config.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    if not masked and not (paired and side == ENCODER):
        return None
    encoder = model.base_model if masked else model.get_encoder()
    every = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    own = {id(tensor) for tensor in (*encoder.parameters(), *encoder.buffers())}
    lacking = [name for name in names if name not in every or id(every[name]) in own]
    if lacking or (masked and encoder is not model and not names):
        return None
    return EncoderAlone(encoder)


def check_side(network: Any, side: str | None, spec: str) -> None:
    """Raises OptionError for a side that a model does not have."""
    has_encoder = isinstance(network, EncoderAlone) or is_masked(getattr(network, "config", None))
    if side == ENCODER and not has_encoder:
        raise OptionError(f"model {spec!r} is a decoder alone, which --side encoder does not fit; leave it out")
    if side == DECODER and has_encoder:
        raise OptionError(f"model {spec!r} is an encoder alone, which --side decoder does not fit; leave it out")
    if isinstance(network, EncoderAlone) and not takes(network.encoder, "input_ids"):
        raise ModelUnsupported(f"the encoder of model {spec!r} reads no text, so nothing of a text fires it")
