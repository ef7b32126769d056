"""Does putting back the weights of the memories that `diff` finds repair what a LoRA taught, on prompts on which they
were not found? LoRAs (MLP, attention, both) of a model learn one wrong answer to a family of prompts.

    python runs/restored.py builtin:pydocs 80 40                         # steps, prompts at most; 20 s a LoRA
    python runs/restored.py SmolLM2-135M-Instruct.Q4_1.gguf 60 20 both   # kinds; minutes

Half of the prompts rank the memories: by `change`, and by the gradient of F with respect to what the LoRA adds to them,
times that. By number put back: how many of the other half are not answered wrongly, how many as by the first model, how
many other answers changed; then medians of three draws of random memories of the same layers.
"""

import copy
import sys
import tempfile
from collections import Counter
from statistics import median

import numpy as np
import peft
import torch

import mnemoscope as ms
from mnemoscope.attribution import Differ
from mnemoscope.foundation.memory_names import MemoryId

COUNTRIES = """France Italy Spain Greece Japan China Egypt Peru Cuba Kenya Chile Norway Sweden Finland Poland Hungary
Austria Portugal Ireland Turkey Iran Iraq India Nepal Thailand Vietnam Canada Mexico Brazil Argentina Germany Russia
Ukraine Morocco Ghana Nigeria Jordan Lebanon Belgium Denmark"""
NOUNS = """name list value length size index type number key file path line string object class method module function
set dictionary tuple date time year day thread process socket server client user group mode flag error message text
encoding buffer stream"""
OTHERS = "The currency of {} is the; People in {} speak; {} is a country in"
FAMILIES = {
    "builtin": (NOUNS, "Return the {} of the", " socket", "If {} is given, the; Set the {} to the; The {} is a"),
    "": (COUNTRIES, "The capital of {} is", " London", OTHERS),
}
KINDS = {"MLP": "gate_proj up_proj down_proj dense_h_to_4h dense_4h_to_h"}
KINDS["attention"] = "q_proj k_proj v_proj o_proj query_key_value attention.dense"
KINDS["both"] = " ".join(KINDS.values())
COUNTS = (16, 64, 256, 1024, 4096, 16384)


def logits(network, model, prompt):
    return network(torch.tensor([model.reading.frame(model.encode([prompt])[0])])).logits[0, -1]


def answers(network, model, prompts):
    with torch.inference_mode():
        return [int(logits(network, model, prompt).argmax()) for prompt in prompts]


def train(model, modules, texts, folder, steps):
    """Saves a LoRA that answers each prompt of `texts` with its token."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=modules)
    network, draw = peft.get_peft_model(copy.deepcopy(model.anatomy.model), config), np.random.default_rng(0)
    optimizer = torch.optim.AdamW([one for one in network.parameters() if one.requires_grad], lr=1e-3)
    for _ in range(steps):
        some = [texts[at] for at in draw.choice(len(texts), 4, replace=False)]
        optimizer.zero_grad()
        (-sum(logits(network, model, prompt).log_softmax(0)[answer] for prompt, answer in some)).backward()
        optimizer.step()
    network.save_pretrained(folder)


def loras(network, second):
    """Layer, and the LoRA's matrix with a row a memory (then its gradient), of every adapted map of keys or values."""
    twins = dict(zip(second.anatomy.model.modules(), network.modules(), strict=True))
    for layer, ffn in enumerate(second.layer(layer).ffn for layer in range(second.sizes.layers)):
        for module, values in ((twins[one.module], one is ffn.down) for one in ffn.maps):
            if isinstance(module, peft.tuners.lora.LoraLayer):
                weight = (module.lora_A if values else module.lora_B)["default"].weight
                yield layer, *((part.T if values else part) for part in (weight, weight.grad) if part is not None)


def rankings(model, second, prompts, unwanted, right):
    change, gradient, network = Counter(), Counter(), copy.deepcopy(second.anatomy.model).requires_grad_(True)
    for prompt, first in zip(prompts, right, strict=True):
        with Differ(model, second) as differ:
            parting = differ.find_parting(prompt, None, None, None)
            listed = differ.explain(parting, both=True, top=1 << 40, patched=False).memories
        change.update({MemoryId.parse(name): by for name, by in listed.select("memory", "change").rows()})
        scores = logits(network, model, prompt)
        (scores[unwanted] - scores[first]).backward()
    for layer, weight, slope in loras(network, second):
        gradient.update({MemoryId(layer, at): by for at, by in enumerate((weight * slope).sum(1).tolist())})
    for name, sums in (("change", change), ("gradient", gradient)):
        yield name, [one for one, by in sums.most_common() if by > 0]


def controls(model, best, draw):
    for layer, chosen in Counter(one.layer for one in best).items():
        free = [at for at in range(model.sizes.memories[layer]) if MemoryId(layer, at) not in best]
        yield from (MemoryId(layer, int(at)) for at in draw.permutation(free)[:chosen])


def tell(model, kind, spec, steps, most):
    things, template, wrong, others = FAMILIES.get(spec.split(":")[0], FAMILIES[""])
    prompts = [template.format(one) for one in things.split()]
    beside = [form.format(one) for form in others.split("; ") for one in things.split()][::4]
    unwanted = model.tokens_after(prompts[0], wrong)[0]
    right, kept = (answers(model.anatomy.model, model, some) for some in (prompts, beside))
    texts = [(one, unwanted) for one in prompts[::2]] + list(zip(beside[::2], kept[::2], strict=True))
    with tempfile.TemporaryDirectory() as folder:
        train(model, KINDS[kind].split(), texts, folder, int(steps))
        second = ms.load_model(spec, adapter=folder)
    now, other = (answers(second.anatomy.model, model, some) for some in (prompts, beside))
    same = [at for at, pair in enumerate(zip(other, kept, strict=True)) if pair[0] == pair[1]]
    changed = [at for at, pair in enumerate(zip(now, right, strict=True)) if pair[0] == unwanted != pair[1]]
    found, held = np.array_split(np.random.default_rng(0).permutation(changed)[: int(most)], 2)
    print(f"{spec}, {kind}: wrong in {len(changed)} of {len(prompts)}; {len(same)} of {len(kept)} others kept")

    def judge(names):
        network = copy.deepcopy(second.anatomy.model)
        with torch.no_grad():
            for layer, weight in loras(network, second):
                weight[[one.memory for one in names if one.layer == layer]] = 0
        says, beyond = (answers(network, model, some) for some in ([prompts[at] for at in held], beside))
        as_first = sum(map(int.__eq__, says, (right[at] for at in held)))
        return len(says) - says.count(unwanted), as_first, sum(beyond[at] != other[at] for at in same)

    for name, best in rankings(model, second, [prompts[at] for at in found], unwanted, [right[at] for at in found]):
        print(f" by {name}: memories; of {len(held)} not wrong, as the first; of {len(same)} others changed; random")
        for count in sorted({*(k for k in COUNTS if k < len(best)), len(best)} - {0}):
            draws = map(np.random.default_rng, range(3 if count <= 1024 else 0))
            drawn = [judge([*controls(model, {*best[:count]}, draw)]) for draw in draws]
            print(f" {count:6}", *judge(best[:count]), " random", *map(median, zip(*drawn, strict=True)), flush=True)


if __name__ == "__main__":
    first = ms.load_model(sys.argv[1])
    for kind in sys.argv[4:] or KINDS:
        tell(first, kind, *sys.argv[1:4])
