"""Models, and parts of models, inside something else: compiled, checkpointed, parallel, a module of somebody's own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations

from mining.conftest import byte_tokenizer
from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import load_model, overwrite_coefficients, read_coefficients
from models.expert_models import build_mixture
from models.test_probed import load, network_of

IDS = torch.tensor([[1, 2, 3, 40, 5]])


def compiled(module: Any) -> Any:
    return torch.compile(module, backend="eager")


def each(path: str, put_around: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Puts something around what stands at this path of every block; around the block itself if it is empty."""

    def change(network: Any) -> Any:
        for number in range(len(network.model.layers)):
            owner, _, name = f"{number}.{path}".strip(".").rpartition(".")
            inside = network.model.layers.get_submodule(owner)
            setattr(inside, name, put_around(getattr(inside, name)))
        return network

    return change


def in_place(module: Any) -> Any:
    module.compile(backend="eager")
    return module


def forward_alone(module: Any) -> Any:
    module.forward = torch.compile(module.forward, backend="eager")
    return module


WAYS: dict[str, Callable[[Any], Any]] = {
    "compiled": compiled,
    "compiled in place": in_place,
    "compiled forward": forward_alone,
    "compiled layers": each("mlp", compiled),
    "compiled layers in place": each("mlp", in_place),
    "compiled blocks": each("", compiled),
    "compiled maps": each("mlp.down_proj", compiled),
    "compiled twice": lambda network: compiled(each("", compiled)(network)),
    "checkpointed blocks": each("", checkpoint_wrapper),
    "checkpointed layers": each("mlp", checkpoint_wrapper),
    "parallel": nn.DataParallel,
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.full
@pytest.mark.parametrize("way", list(WAYS))
def test_it_is_the_same_model(way: str) -> None:
    plain = load(network_of("llama"))
    network = WAYS[way](network_of("llama"))
    network(input_ids=IDS)  # compiled before anybody looks
    model = load(network)
    assert (model.fingerprint, model.probed, model.block) == (plain.fingerprint, False, plain.block)
    assert model.sizes == plain.sizes
    found: list[dict[int, Tensor]] = [{}, {}]
    for one, seen in zip((model, plain), found, strict=True):
        with read_coefficients(one, seen.__setitem__):
            one.backbone(IDS)
    for layer in range(plain.sizes.layers):
        assert torch.equal(model.values(layer), plain.values(layer))
        assert torch.equal(found[0][layer], found[1][layer])
    # Reading leaves no trace: it is compiled again, and not with the package's hooks in it.
    with overwrite_coefficients(model, {0: torch.zeros_like}):
        changed = model.logits(IDS)
    torch.testing.assert_close(network(input_ids=IDS).logits, plain.logits(IDS))
    assert not torch.allclose(changed, plain.logits(IDS))


def test_compiled_code_runs_compiled_when_nobody_reads() -> None:
    runs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        return lambda *inputs: (runs.append(1), graph.forward(*inputs))[1]

    network = each("mlp", lambda module: torch.compile(module, backend=backend))(network_of("llama"))
    network(input_ids=IDS)
    before = len(runs)
    model = load(network)
    model.logits(IDS)
    assert len(runs) == before > 0
    network(input_ids=IDS)
    assert len(runs) == 2 * before


@pytest.mark.parametrize("place", ["experts", "block"])
def test_compiled_experts(place: str, tokenizer: Any) -> None:
    plain, network = load_model(build_mixture("qwen2_moe"), tokenizer=tokenizer), build_mixture("qwen2_moe")
    for number, block in enumerate(network.model.layers):
        if place == "experts":
            block.mlp.experts = compiled(block.mlp.experts)
        else:
            network.model.layers[number] = compiled(block)
    model = load_model(network, tokenizer=tokenizer)
    assert (model.fingerprint, model.sizes) == (plain.fingerprint, plain.sizes)
    assert torch.equal(model.values(1), plain.values(1))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_a_matrix_that_is_made_of_others(kind: str) -> None:
    network = network_of("llama")
    for layer in network.model.layers:
        getattr(parametrizations, kind)(layer.mlp.down_proj)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "original" in name:
                parameter.mul_(1.5)
    network.eval()
    model, wide = load(network), network_of("llama")
    for own, layer in zip(wide.model.layers, network.model.layers, strict=True):
        own.mlp.down_proj.weight.data = layer.mlp.down_proj.weight.detach()
    twin = load(wide)
    assert model.sizes == twin.sizes
    for number in range(model.sizes.layers):
        assert torch.equal(model.values(number), twin.values(number))


class Own(nn.Module):
    """A low-rank change that somebody wrote around a layer, with no sizes of its own."""

    def __init__(self, inside: nn.Linear) -> None:
        super().__init__()
        self.down = nn.Linear(inside.in_features, 2, bias=False)
        self.inside = inside
        self.up = nn.Linear(2, inside.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        given: Tensor = self.inside(inputs) + self.up(self.down(inputs))
        return given


class Inherited(nn.Linear):
    """The same inside a layer of torch's class, whose `weight` is then not what it computes."""

    def __init__(self, inside: nn.Linear) -> None:
        super().__init__(inside.in_features, inside.out_features, bias=False)
        self.weight, self.more = inside.weight, nn.Parameter(torch.randn(inside.out_features, inside.in_features) / 9)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + inputs @ self.more.T


@pytest.mark.parametrize("kind", [Own, Inherited])
def test_a_module_of_somebody_s_own_is_what_it_makes_of_unit_vectors(kind: Any) -> None:
    torch.manual_seed(3)
    network, wide = each("mlp.down_proj", kind)(network_of("llama")), network_of("llama")
    with torch.no_grad():
        for own, layer in zip(wide.model.layers, network.model.layers, strict=True):
            module = layer.mlp.down_proj
            if kind is Own:
                made, bias = module.inside.weight + module.up.weight @ module.down.weight, module.up.bias
            else:
                made, bias = module.weight + module.more, None
            own.mlp.down_proj.weight.copy_(made)
            own.mlp.down_proj.bias = bias
    model, twin = load(network), load(wide)
    assert (model.probed, twin.probed, model.sizes.ffn_parameters) == (True, False, twin.sizes.ffn_parameters)
    for number in range(model.sizes.layers):
        torch.testing.assert_close(model.values(number), twin.values(number), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model.logits(IDS), twin.logits(IDS))


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[Any]:
    if not dist.is_available():
        pytest.skip("torch without distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["fsdp", "tensor"])
def test_weights_that_processes_share_are_refused(kind: str, process_group: Any) -> None:
    network = network_of("llama")
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(network, mesh=process_group)
    else:
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(network.model.layers[0].mlp, process_group, {"up_proj": ColwiseParallel()})
    with pytest.raises(ModelUnsupported, match=r"shared out among processes .* load it in one process"):
        load(network)


def test_what_is_put_around_something_else_is_not_a_model() -> None:
    with pytest.raises(Exception, match="no model can be loaded from a Linear"):
        load_model(compiled(nn.Linear(2, 2)), tokenizer=byte_tokenizer())
