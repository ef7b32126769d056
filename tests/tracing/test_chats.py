"""Chats as prompts: the ids are those of transformers, the model's beginning token comes once, and positions count what
was written.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import mnemoscope as ms
from mining.conftest import byte_tokenizer
from mnemoscope.attribution.attribution import is_template
from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError, ModelUnsupported, PromptError
from mnemoscope.foundation.options.chat_prompt import ChatPrompt
from mnemoscope.models import load_model
from mnemoscope.tracing import compare, for_terminal, generate
from mnemoscope.tracing.layer_sum import layer_sum
from models.conftest import build
from models.small_tokenizers import byte_fallback

END = "<|endoftext|>"
CHATML = (
    "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
INSIDE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)
CHAT = [
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat"},
    {"role": "user", "content": "ab user"},
]


def tokenizer_of(template: str) -> Any:
    if template == LLAMA2:
        found: Any = PreTrainedTokenizerFast(tokenizer_object=byte_fallback(), bos_token="<s>", eos_token="</s>")
    else:
        found = byte_tokenizer(**({"bos_token": END} if template == INSIDE else {}), eos_token=END)
        found.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    found.chat_template = template
    return found


def model_of(template: str) -> ms.LanguageModel:
    own = {"bos_token_id": None, "eos_token_id": None}  # the tokenizer's alone
    return load_model(build("gpt2-relu", vocab_size=300, **own), tokenizer=tokenizer_of(template))


@pytest.fixture(scope="module")
def model() -> ms.LanguageModel:
    return model_of(INSIDE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "chat"
    build("gpt2-relu", vocab_size=300, bos_token_id=None, eos_token_id=None).save_pretrained(place)
    tokenizer_of(INSIDE).save_pretrained(place)
    return place


@pytest.mark.parametrize("template", [CHATML, LLAMA2, INSIDE])
@pytest.mark.parametrize("messages", [CHAT, CHAT[:1], [{"role": "user", "content": "the <|im_end|> é cat"}]])
def test_ids_are_those_of_transformers(template: str, messages: list[dict[str, str]]) -> None:
    loaded = model_of(template)
    options: dict[str, Any] = {"tokenize": True, "return_dict": False, "add_generation_prompt": True}
    expected = tokenizer_of(template).apply_chat_template(messages, **options)
    read = loaded.reading.frame(loaded.prompt_tokens(messages))
    if template == CHATML:  # it has no beginning token: the end-of-text token stands in, as before every sentence
        assert read[0] == loaded.beginning.token != expected[0]
        read = read[1:]
    assert read == expected
    assert loaded.prompt_tokens(loaded.prompt_text(messages)) == loaded.prompt_tokens(messages)


@pytest.mark.parametrize("template", [CHATML, LLAMA2, INSIDE])
def test_positions_count_what_was_written_last(template: str) -> None:
    loaded = model_of(template)
    for messages, content in ((CHAT, "ab user"), (CHAT[:1], "the cat")):
        traced = ms.trace(loaded, messages, top=1, memories=0)
        own = [one for one in traced.positions if 0 <= one.position < (traced.own or 0)]
        assert [one.position for one in own] == list(range(len(own)))
        assert "".join(one.token.text for one in own).strip() == content
        numbers = [one.position for one in traced.positions]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[0] < 0 < numbers[-1]
        assert [one.position for one in traced.places[0]] == [one.position for one in traced.logits] == numbers
        asked = {at: traced.positions[traced.index_of(at)].position for at in (0, -1, None, -len(own) - 1)}
        assert asked == {0: 0, -1: len(own) - 1, None: numbers[-1], -len(own) - 1: -1}
        whole = ms.trace(loaded, loaded.prompt_text(messages, whole=True), top=1, memories=0)
        assert [one.position for one in whole.positions] == list(range(len(numbers)))
        assert [one.prediction for one in whole.positions] == [one.prediction for one in traced.positions]


def test_a_template_that_trims_a_message_counts_what_is_left() -> None:
    loaded = model_of(CHATML)
    one, other = (loaded.prompt_text([{"role": "user", "content": text}]) for text in ("the cat", " the cat\n"))
    assert isinstance(one, ChatPrompt)
    assert isinstance(other, ChatPrompt)
    assert (str(one), one.start, one.own) == (str(other), other.start, other.own)


def test_a_chat_is_not_its_text(model: ms.LanguageModel) -> None:
    """In plain text special strings are plain; and a cache does not take one for the other."""
    chat = model.prompt_text(CHAT)
    assert chat != str(chat)
    assert str(chat) != chat
    assert chat != str(chat)
    assert len(model.encode([str(chat)])[0]) > len(model.prompt_tokens(chat)) + 1
    assert chat == model.prompt_text(CHAT)
    assert hash(chat) == hash(model.prompt_text(CHAT))
    assert eval(repr(chat)) == CHAT


def test_a_change_from_a_position_on_counts_as_the_trace_does(model: ms.LanguageModel) -> None:
    start = -ms.trace(model, CHAT, top=1, memories=0).positions[0].position
    found = ms.trace(model, CHAT, top=1, memories=0, interventions=["L0.M3=9@2"])
    assert list(map(str, found.interventions)) == ["L0.M3=9@2"]
    with ms.intervene(model, ["L0.M3=9"], at="all"):
        everywhere = ms.trace(model, CHAT, top=1, memories=0)
    with ms.intervene(model, {"L0.M3": 9.0}, at=start + 2):  # it knows no prompt
        expected = ms.trace(model, CHAT, top=1, memories=0)
    plain = ms.trace(model, CHAT, top=1, memories=0)
    assert found.positions == expected.positions != everywhere.positions
    assert found.positions[: start + 2] == plain.positions[: start + 2]
    assert found.positions[start + 2] != plain.positions[start + 2]
    steps = list(generate(model, CHAT, tokens=2, interventions=["L0.M3=9@2"]))
    assert steps[0].position == found.positions[-1].position + 1
    assert steps[0].likely[0] == found.positions[-1].prediction[0]
    both = compare(model, CHAT, ["L0.M3=9@2"])
    assert [one.position for one in both.differences] == [one.position for one in found.positions]
    assert both.differences[start + 1].kl == 0 < both.differences[start + 2].kl
    assert "after position 2" in both.text(position=2)


def test_figure_1_counts_as_the_trace_does(model: ms.LanguageModel) -> None:
    chat, changes = model.prompt_text(CHAT), ["L0.M3=9@2"]
    assert isinstance(chat, ChatPrompt)
    traced = ms.trace(model, CHAT, top=5, interventions=changes)
    tokens = [one.token.id for one in traced.positions]
    for asked in (None, -1, 0, 1, 2, -chat.own - 1):
        index = traced.index_of(asked)
        state = traced.places[0][index]
        found = layer_sum(model, CHAT, 0, position=asked, interventions=changes)
        assert (found["position"], found["own"]) == (traced.positions[index].position, chat.own)
        assert [one["id"] for one in found["tokens"]] == tokens[: index + 1]
        expected = [(str(one.memory), one.coefficient) for one in state.memories]
        for row, (name, coefficient) in zip(found["memories"], expected, strict=True):
            assert row["memory"] == name
            assert row["coefficient"] == pytest.approx(coefficient, abs=1e-6)
        assert ("L0.M3", 9) in expected or found["position"] < 2
        assert [one["id"] for one in found["output"]] == [one.token.id for one in state.output]
        options = found["made_by"]["options"]
        assert (options["prompt"], options["position"]) == (CHAT, asked)


def test_parts_add_up_and_memories_stand_at_their_positions(model: ms.LanguageModel) -> None:
    chat = model.prompt_text(CHAT)
    tokens, texts = model.prompt_tokens(chat), model.vocabulary()[0]
    assert isinstance(chat, ChatPrompt)
    found = ms.attribute(model, CHAT, singles=4, progress=False)
    assert abs(found.residual_error) <= found.limit < 1e-3
    assert found.position == len(tokens) - 1 - chat.start
    assert found.difference == pytest.approx(found.parts()["direct"].sum(), abs=found.limit)
    assert {texts[tokens[one["position"] + chat.start]] == one["token"] for one in found.memories.to_dicts()} == {True}
    assert found.memories["position"].min() < 0  # type: ignore[operator]
    coefficients = model.coefficients(CHAT, layers=[0])
    for one in found.memories.filter(found.memories["memory"].str.starts_with("L0")).to_dicts()[:5]:
        number = int(one["memory"].split("M")[1])
        [row] = coefficients.filter(memory=number, position=one["position"]).to_dicts()
        assert row["coefficient"] == pytest.approx(one["coefficient"], abs=1e-5)
        assert row["token"] == one["token"]
    first = ms.attribute(model, CHAT, position=0, singles=0, progress=False)
    ids = torch.tensor([model.reading.frame(tokens[: chat.start + 1])])
    best = model.logits(ids)[0, -1].topk(2)
    assert first.position == 0
    assert first.target.id == int(best.indices[0])
    assert first.difference == pytest.approx(float(best.values[0] - best.values[1]), abs=1e-4)
    assert ms.attribute(model, CHAT, position=-1, singles=0, progress=False).position == chat.own - 1
    given = found.made_by["options"]["prompt"]
    assert given == CHAT
    assert json.loads(json.dumps(found.to_dict()))["prompt"] == str(chat)


def test_an_answer_is_read_behind_the_template(model: ms.LanguageModel) -> None:
    chat = model.prompt_text(CHAT)
    whole = tokenizer_of(INSIDE)(str(chat) + "the cat", add_special_tokens=False)["input_ids"][1:]
    assert model.prompt_tokens(chat) + model.tokens_after(chat, "the cat") == whole


def test_two_runs_of_a_chat_differ_as_those_of_its_ids(model: ms.LanguageModel) -> None:
    other = [*CHAT[:-1], {"role": "user", "content": "bb user"}]
    found = ms.diff(model, CHAT, other_prompt=other, target="x", against="y", progress=False)
    second = model.prompt_text(other)
    ids = torch.tensor([model.reading.frame(model.prompt_tokens(second))])
    logits = model.logits(ids)[0, -1]
    x, y = (model.tokens_after(second, text)[0] for text in "xy")
    assert found.second == pytest.approx(float(logits[x] - logits[y]), abs=1e-4)
    texts, tokens = model.vocabulary()[0], model.prompt_tokens(second)
    assert isinstance(second, ChatPrompt)
    assert found.memories.height
    for one in found.memories.to_dicts():
        assert one["position"] >= 0, "nothing before the first changed token changes"
        assert texts[tokens[one["position"] + second.start]] == one["token"]


def test_the_template_is_dim_in_a_terminal(model: ms.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    traced = ms.trace(model, CHAT, top=1, memories=0)
    plain = traced.text()
    assert "\x1b" not in plain
    with for_terminal(90):
        lines = traced.text().splitlines()
    [head] = [number for number, line in enumerate(lines) if line.startswith("position")]
    rows = lines[head + 1 : head + 1 + len(traced.positions)]
    for at, line in zip(traced.positions, rows, strict=True):
        pale = not 0 <= at.position < (traced.own or 0)
        assert line.count("\x1b[2m") == line.count("\x1b[22m") == (2 if pale else 0), line
    with for_terminal(90):
        assert "\x1b" not in ms.trace(model, "the cat", top=1).text()
        found = ms.attribute(model, CHAT, singles=2, progress=False)
        shown = found.text().splitlines()
    last = found.position - found.shared
    for row in found.memories.head(20).to_dicts():
        [line] = [line for line in shown if line.startswith(row["memory"] + " ") and f"{row['position']} " in line][:1]
        assert ("\x1b[2m" in line) == is_template(row["position"], found.own, last)
    monkeypatch.setenv("NO_COLOR", "1")
    with for_terminal(90):
        assert "\x1b" not in traced.text()


def run(folder: Path, capsys: pytest.CaptureFixture[str], *words: str, verb: str = "trace") -> Any:
    assert main([verb, str(folder), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_commands_take_a_chat(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = run(folder, capsys, "the cat", "--chat", "--generate", "2")
    (tmp_path / "chat.json").write_text(json.dumps(CHAT[:1]))
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(message) + "\n" for message in CHAT[:1]))
    for name in ("chat.json", "chat.jsonl"):
        other = run(folder, capsys, "--messages", str(tmp_path / name), "--generate", "2")
        assert other["trace"]["positions"] == one["trace"]["positions"]
        assert other["generation"] == one["generation"]
    assert one["trace"]["own"] == sum(0 <= at["position"] < one["trace"]["own"] for at in one["trace"]["positions"])
    assert "prompt = [{'role': 'user', 'content': 'the cat'}]" in one["python"]
    whole = run(folder, capsys, "the cat", "--chat", "--whole")
    assert [at["position"] for at in whole["trace"]["positions"]] == list(range(len(one["trace"]["positions"])))
    drawn = run(
        folder, capsys, "the cat", "--chat", "--position", "0", "--figure1", "1", "--out", str(tmp_path / "a.svg")
    )
    assert (drawn["figure1"]["position"], drawn["figure1"]["own"]) == (0, one["trace"]["own"])
    assert (tmp_path / "a.svg").read_bytes()[:4] == b"<svg"
    asked = run(folder, capsys, "the cat", "--chat", "--position", "0", "--singles", "2", verb="attribute")
    assert asked["position"] == 0
    assert asked["target"] == next(at["prediction"][0]["id"] for at in one["trace"]["positions"] if at["position"] == 0)
    words = ["the cat", "--chat", "--other-prompt", "the sat", "--for", "x", "--against", "y"]
    differing = run(folder, capsys, *words, verb="diff")
    assert differing["prompts"]["first"].replace("the cat", "the sat") == differing["prompts"]["second"]
    row = {"messages": CHAT, "for": "x", "against": "y"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"prompt": "the cat"}) + "\n")
    many = run(folder, capsys, "--prompts", str(tmp_path / "rows.jsonl"), "--top", "3", verb="attribute")
    assert many["prompts"] == 2
    assert not many["refused"]
    pair = {"messages": CHAT, "other_prompt": "ab", "for": "x"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(pair | {"against": "y"}))
    assert run(folder, capsys, "--prompts", str(tmp_path / "rows.jsonl"), verb="diff")["prompts"] == 1


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "neither a text nor a list of messages, at least one"),
        ([{"content": "a"}], "message 1 of the chat has no role"),
        ([*CHAT, {"role": "user"}], "message 4 of the chat has no content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1 of the chat has a content that is no text"),
        (["a"], "message 1 of the chat has no role"),
        ([{"role": "user", "content": ""}], "the last message is empty, or the chat template leaves it out"),
        ([{"role": "user", "content": "the cat " * 40}], r"the prompt has \d+ tokens \(\d+ beside yours\), but"),
    ],
)
def test_what_is_no_chat_is_refused(
    messages: list[Any], said: str, model: ms.LanguageModel, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(PromptError, match=said):
        ms.trace(model, messages)
    (tmp_path / "chat.json").write_text(json.dumps(messages))
    assert main(["trace", str(folder), "--messages", str(tmp_path / "chat.json")]) == 2


def test_refusals_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(CHAT))
    cases = (
        (["--messages", str(path), "--chat"], "leave out --chat"),
        (["the cat", "--messages", str(path)], "leave out PROMPT"),
        (["the cat", "--whole"], "--whole is for a chat"),
        ([], "give PROMPT"),
        (["--messages", str(tmp_path / "none.json")], "cannot be read"),
    )
    for words, said in cases:
        assert main(["trace", str(folder), *words]) == 2
        shown = capsys.readouterr().err
        assert said in shown
        assert shown.count("\n") == 1
    for words in (["trace"], ["attribute"], ["diff", "--other", "builtin:pydocs"]):
        assert main([words[0], "builtin:pydocs", "Hi", "--chat", *words[1:]]) == 2
        assert "has no chat template" in capsys.readouterr().err


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(PromptError, match=r"the chat template refuses these messages \(no robots\)"):
        model_of(CHATML).prompt_text([{"role": "robot", "content": "a"}])


def test_without_a_tokenizer_there_is_no_chat() -> None:
    with pytest.raises(ModelUnsupported, match="has no chat template"):
        ms.trace(load_model(build("gpt2-relu"), tokenizer="ids"), CHAT)
    assert issubclass(ModelUnsupported, MnemoscopeError)
