"""Does putting back the weights of the memories that `diff` finds repair what a LoRA taught, on prompts on which they
were not found? Three LoRAs (MLP, attention, both) of a model learn one wrong answer to a family of prompts.

    python runs/restored.py builtin:pydocs 80                            # 20 s a LoRA
    python runs/restored.py SmolLM2-135M-Instruct.Q4_1.gguf 60 MLP       # about eight minutes on two cores

Half of the prompts that the LoRA changed rank the memories: by `change`, and by gradient (that of F with respect to
what the LoRA adds to their weights, times that). Then, by number of memories put back: how many prompts of the other
half are not answered wrongly, how many as by the first model, and how many other answers, which the LoRA had left
alone, changed; beside medians of three draws of as many random memories of the same layers.
"""

import copy
import sys
import tempfile
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
OTHERS = ("The currency of {} is the", "People in {} speak", "{} is a country in")
FAMILIES = {
    "builtin": (NOUNS, "Return the {} of the", " socket", ("If {} is given, the", "Set the {} to the", "The {} is a")),
    "other": (COUNTRIES, "The capital of {} is", " London", OTHERS),
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "query_key_value", "attention.dense"]
MLP = ["gate_proj", "up_proj", "down_proj", "dense_h_to_4h", "dense_4h_to_h"]
KINDS = {"MLP": MLP, "attention": ATTENTION, "both": MLP + ATTENTION}
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
    """Layer, and the LoRA's matrix with a row a memory, of every adapted map of keys or values."""
    paths = {module: path for path, module in second.anatomy.model.named_modules()}
    for layer in range(second.sizes.layers):
        for one in second.layer(layer).ffn.maps:
            module, values = network.get_submodule(paths[one.module]), one is second.layer(layer).ffn.down
            if isinstance(module, peft.tuners.lora.LoraLayer):
                weight = (module.lora_A if values else module.lora_B)["default"].weight
                yield layer, *((part.T if values else part) for part in (weight, weight.grad) if part is not None)


def rankings(model, second, prompts, unwanted, right):
    by_change, by_gradient, network = {}, {}, copy.deepcopy(second.anatomy.model).requires_grad_(True)
    for prompt, first in zip(prompts, right, strict=True):
        with Differ(model, second) as differ:
            parting = differ.find_parting(prompt, None, None, None)
            listed = differ.explain(parting, both=True, top=1 << 40, patched=False).memories
        for name, change in listed.select("memory", "change").rows():
            by_change[MemoryId.parse(name)] = by_change.get(MemoryId.parse(name), 0) + change
        scores = logits(network, model, prompt)
        (scores[unwanted] - scores[first]).backward()
    for layer, weight, slope in loras(network, second):
        for memory, score in enumerate((weight * slope).sum(1).tolist()):
            by_gradient[MemoryId(layer, memory)] = by_gradient.get(MemoryId(layer, memory), 0) + score
    for name, sums in (("change", by_change), ("gradient", by_gradient)):
        yield name, sorted((one for one in sums if sums[one] > 0), key=sums.get, reverse=True)


def controls(model, best, draw):
    """As many random other memories of each layer."""
    for layer in {one.layer for one in best}:
        chosen = [one.memory for one in best if one.layer == layer]
        free = np.setdiff1d(np.arange(model.sizes.memories[layer]), chosen)
        some = draw.choice(free, min(len(free), len(chosen)), replace=False)
        yield from (MemoryId(layer, int(at)) for at in some)


def tell(model, spec, kind, steps):
    things, template, wrong, others = FAMILIES.get(spec.split(":")[0], FAMILIES["other"])
    prompts, beside = ([form.format(one) for form in some for one in things.split()] for some in ((template,), others))
    beside, unwanted = beside[::4], model.tokens_after(prompts[0], wrong)[0]
    right, kept = (answers(model.anatomy.model, model, some) for some in (prompts, beside))
    texts = [(one, unwanted) for one in prompts[::2]] + list(zip(beside[::2], kept[::2], strict=True))
    with tempfile.TemporaryDirectory() as folder:
        train(model, KINDS[kind], texts, folder, steps)
        second = ms.load_model(spec, adapter=folder)
    now, other = (answers(second.anatomy.model, model, some) for some in (prompts, beside))
    same = [at for at, pair in enumerate(zip(other, kept, strict=True)) if pair[0] == pair[1]]
    changed = [at for at, pair in enumerate(zip(now, right, strict=True)) if pair[0] == unwanted != pair[1]]
    found, held = np.array_split(np.random.default_rng(0).permutation(changed), 2)
    print(f"{spec}, {kind}: wrong in {len(changed)} of {len(prompts)}; {len(same)} of {len(kept)} other answers kept")

    def judge(names):
        network = copy.deepcopy(second.anatomy.model)
        with torch.no_grad():
            for layer, weight in loras(network, second):
                weight[[one.memory for one in names if one.layer == layer]] = 0
        says, beyond = (answers(network, model, some) for some in ([prompts[at] for at in held], beside))
        as_first = sum(one == right[at] for one, at in zip(says, held, strict=True))
        return sum(one != unwanted for one in says), as_first, sum(beyond[at] != other[at] for at in same)

    asked = [prompts[at] for at in found], unwanted, [right[at] for at in found]
    for name, best in rankings(model, second, *asked):
        print(f" by {name}: memories; of {len(held)} not wrong, as the first; of {len(same)} others changed; random")
        for count in sorted({*(k for k in COUNTS if k < len(best)), len(best)}):
            draws = [np.random.default_rng(seed) for seed in range(3 if count <= 1024 else 0)]
            beside_it = [judge(list(controls(model, best[:count], draw))) for draw in draws]
            print(
                f" {count:6}", *judge(best[:count]), " random", *map(median, zip(*beside_it, strict=True)), flush=True
            )


if __name__ == "__main__":
    torch.set_num_threads(2)
    first = ms.load_model(sys.argv[1])
    for kind in sys.argv[3:] or KINDS:
        tell(first, sys.argv[1], kind, int(sys.argv[2]))
