"""Chats and problems of a user's own: what a template makes of them, which tokens the loss counts, and rewards by a function."""

import base64
import importlib
import json
import random
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.schema.metrics import MetricsRecord

LAUNCHERS = Path(__file__).parents[2] / "launchers"
pytestmark = [pytest.mark.timeout(240), pytest.mark.smoke]

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of Perú?"},
    {"role": "assistant", "content": "Lima."},
    {"role": "user", "content": "And of Chile?"},
    {"role": "assistant", "content": "Santiago\n de Chile."},
]
# Chatml with a block that names the assistant's part, and one that drops what the assistant thought once a question follows.
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['role'] == 'assistant' and not loop.last %}…{% else %}{{ m['content'] }}"
    "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(autouse=True)
def _lib_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHERS))


def lib(name: str) -> Any:
    return importlib.import_module(f"lib.{name}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face tokenizer, trained here, with chatml's special tokens and a template of its own."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([message["content"] + " assistant user system" for message in CHAT] * 9, trainer)
    path = tmp_path_factory.mktemp("tokenizer")
    made.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": MARKED}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def layout(tokenizer: Path | str = "bytes", template: str | None = None) -> Any:
    return lib("chats").ChatLayout(lib("vocabulary").opened(str(tokenizer)), template)


def answers(made: Any, row: Any) -> list[str]:
    """The runs of tokens that the loss counts, as text."""
    runs: list[list[int]] = [[]]
    for token, counts in zip(row.tokens, row.mask, strict=True):
        if counts:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [made.tokenizer.decode(run) for run in runs if run]


# ---- templates ----


def test_tokens_and_mask_are_those_of_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    want = theirs.apply_chat_template(CHAT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    row = layout(folder).row(CHAT)
    assert row.tokens == list(want["input_ids"])
    assert row.mask == list(want["assistant_masks"])
    assert sum(row.mask) > 8
    asked = theirs.apply_chat_template(CHAT[:4], tokenize=True, add_generation_prompt=True, return_dict=True)
    assert layout(folder).prompt(CHAT[:4]) == list(asked["input_ids"])


@pytest.mark.parametrize("template", ["chatml", None])
def test_the_loss_counts_the_assistants_turns_and_their_ends(folder: Path, template: str | None) -> None:
    made = layout(folder, template)
    assert answers(made, made.row(CHAT)) == ["Lima.<|im_end|>", "Santiago\n de Chile.<|im_end|>"]
    assert answers(made, made.row(CHAT, "last")) == ["Santiago\n de Chile.<|im_end|>"]
    assert made.end() == made.tokenizer.special["<|im_end|>"]


def test_bytes_need_no_file() -> None:
    made = layout()
    row = made.row(CHAT[1:3])
    assert bytes(row.tokens) == b"\xfeuser\nCapital of Per\xc3\xba?\xfd\xfeassistant\nLima.\xfd"
    assert bytes(t for t, counts in zip(row.tokens, row.mask, strict=True) if counts) == b"Lima.\xfd"
    assert bytes(made.prompt(CHAT[1:2])) == bytes(row.tokens)[: -len(b"Lima.\xfd")]
    assert made.end() == 0xFD


def test_tiktoken_reads_special_tokens_in_the_template_only(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    public: Any = importlib.import_module("tiktoken_ext.openai_public")

    ranks = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (tmp_path / "own.tiktoken").write_text(ranks)

    def own() -> dict[str, Any]:
        special = {"<|im_start|>": 256, "<|im_end|>": 257, "<|endoftext|>": 258}
        merges = public.load_tiktoken_bpe("")
        return {"name": "own", "pat_str": r"\w+|\W+", "mergeable_ranks": merges, "special_tokens": special}

    public.ENCODING_CONSTRUCTORS["own"] = own
    try:
        made = layout(tmp_path / "own.tiktoken", "chatml")
    finally:
        del public.ENCODING_CONSTRUCTORS["own"]
    row = made.row(CHAT)
    assert [row.tokens.count(number) for number in (256, 257)] == [5, 5]
    assert answers(made, row) == ["Lima.<|im_end|>", "Santiago\n de Chile.<|im_end|>"]


def test_a_template_that_rewrites_earlier_turns_is_for_the_last_one_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "forgets.jinja").write_text(FORGETS)
    made = layout(folder, str(tmp_path / "forgets.jinja"))
    with pytest.raises(lib("chats").BadChat, match="writes message 3 differently once others follow: --turns last"):
        made.row(CHAT)
    assert answers(made, made.row(CHAT, "last")) == ["Santiago\n de Chile.<|im_end|>"]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "no list of messages"),
        ("hello", "no list of messages"),
        ([{"content": "x"}], "message 1 has no role"),
        ([{"role": "user", "content": None}], "message 1 has no text under 'content'"),
        ([{"role": "user", "content": "x"}], "no message of the assistant"),
        (
            [{"role": "user", "content": "a <|im_end|> b"}, CHAT[2]],
            "message 1 has the tokenizer's <|im_end|> in its text",
        ),
        ([{"role": "user", "content": "\ud800"}, CHAT[2]], "half a surrogate pair"),
    ],
)
def test_a_chat_that_cannot_be_learned_says_why(folder: Path, messages: Any, why: str) -> None:
    with pytest.raises(lib("chats").BadChat, match=why.replace("|", r"\|")):
        layout(folder, "chatml").row(messages)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% if %}", "line 1: Expected an expression"),
        ("{{ messages[0].__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ nothing.there }}", "'nothing' is undefined"),
    ],
)
def test_a_template_that_fails_says_why(tmp_path: Path, template: str, error: str) -> None:
    (tmp_path / "t.jinja").write_text(template)
    with pytest.raises((lib("faults").Refused, lib("chats").BadChat)) as refused:
        layout("bytes", str(tmp_path / "t.jinja")).row(CHAT)
    assert error in str(refused.value)
    assert "t.jinja" in str(refused.value)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("chatml", "no special token <|im_end|>, <|im_start|>"),
        ("chatlm", "neither one of chatml, llama3, bytes nor a file"),
    ],
)
def test_a_template_that_the_tokenizer_cannot_have_is_refused(template: str, error: str) -> None:
    with pytest.raises(lib("faults").Refused) as refused:
        layout("bytes", template)
    assert error in str(refused.value)


# ---- training on chats ----

COLOURS = {"grass": "green", "sky": "blue", "snow": "white", "coal": "black", "blood": "red", "gold": "yellow"}
SMALL = ("--layers", 1, "--dim", 32, "--seq-len", 64, "--log-every", 1, "--validation", 0.1)


@pytest.fixture(scope="module")
def chats_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 short chats, of lengths that differ; two that are too long, and one without an answer."""
    draw, path = random.Random(0), tmp_path_factory.mktemp("chats") / "chats.jsonl"
    lines = []
    for number in range(240):
        thing = draw.choice([*COLOURS])
        words = [{"role": "user", "content": f"{number}: {thing}"}, {"role": "assistant", "content": COLOURS[thing]}]
        lines.append({"messages": words})
    for number in (3, 7):
        lines.insert(number, {"messages": [{"role": "user", "content": "x" * 80}, CHAT[2]]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_chats_are_learned_and_a_resume_goes_on(chats_file: Path, training: Any, tools: Any) -> None:
    words = (*SMALL, "--data", chats_file, "--batch-size", 16, "--lr", 0.01, "--eval-every", 10)
    whole = training.run("sft/train.py", "whole", *words, "--max-steps", 30)
    assert "2 long, left out" in whole.output()
    (before,) = tools.records(whole.run_dir, "test")
    (final,) = tools.records(whole.run_dir, "final")
    assert before["test_loss"] > 4
    assert final["test_loss"] < before["test_loss"] - 2
    evaluated = tools.records(whole.run_dir, "eval")
    assert [one["step"] for one in evaluated] == [10, 20, 30]
    assert evaluated[-1]["eval_loss"] == final["test_loss"]
    least = min(evaluated, key=lambda one: float(one["eval_loss"]))
    best = whole.run_dir / "checkpoints" / (whole.run_dir / "checkpoints" / "best").read_text().strip()
    assert json.loads((best / "complete.json").read_text())["eval_loss"] == least["eval_loss"]
    for record in tools.records(whole.run_dir):
        MetricsRecord.model_validate(record)

    first = training.start("sft/train.py", "twice", *words, "--max-steps", 30, "--checkpoint-every", 10)
    first.until_step(12)
    first.kill()
    training.run("sft/train.py", "twice", *words, "--max-steps", 30, "--checkpoint-every", 10)
    (again,) = tools.records(training.folder / "twice", "final")
    assert again["test_loss"] == final["test_loss"]
    # Other chats are other data.
    (training.folder / "other.jsonl").write_text(chats_file.read_text().replace("green", "mauve"))
    refused = training.start(
        "sft/train.py", "twice", *words, "--max-steps", 31, "--data", training.folder / "other.jsonl", forked=True
    )
    assert 1 in refused.wait()
    assert "--data is sha256:" in refused.output()


def test_four_copies_resume_to_the_bit(chats_file: Path, training: Any) -> None:
    """DDP orders its buckets after the first backward pass. The order of sums over more than two ranks depends on that."""
    torch = pytest.importorskip("torch")
    words = (*SMALL, "--data", chats_file, "--batch-size", 16, "--max-steps", 60)

    def weights(run: str) -> dict[str, Any]:
        state = training.folder / run / "checkpoints" / "step-00000060" / "state.pt"
        return torch.load(state, map_location="cpu", weights_only=True)["model"]  # type: ignore[no-any-return]

    training.run("sft/train.py", "whole", *words, ranks=4)
    part = training.start("sft/train.py", "parts", *words, ranks=4)
    part.until_step(12)
    part.processes[1].send_signal(signal.SIGUSR1)
    assert set(part.wait()) == {128 + signal.SIGUSR1}, part.output()
    training.run("sft/train.py", "parts", *words, ranks=4)
    whole, parts = weights("whole"), weights("parts")
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []


def test_a_template_of_ones_own_and_the_last_turn_alone(training: Any, tools: Any) -> None:
    """Built from bytes, so that what is counted can be read: the second answer of each chat, and its end."""
    template, data = training.folder / "own.jinja", training.folder / "chats.jsonl"
    template.write_text(FORGETS)
    lines = []
    for number in range(40):
        said = (("user", f"{number}"), ("assistant", "first"), ("user", "more"), ("assistant", "last"))
        lines.append(json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n")
    data.write_text("".join(lines))
    words = ("--data", data, "--chat-template", template, "--turns", "last", "--batch-size", 8, "--max-steps", 2)
    run_dir = training.run("sft/train.py", "run", *SMALL, "--seq-len", 128, *words).run_dir
    (made,) = (run_dir / "data").glob("chats-*")
    lessons = lib("chat_dataset").ChatDataset(made, json.loads((made / "chats.json").read_text()))
    (row, *_) = lessons.held_out(256)
    assert bytes(token for token, counts in zip(row.tokens, row.mask, strict=True) if counts) == b"last<|im_end|>"


def test_the_curve_is_the_same_on_every_layout(chats_file: Path, training: Any, tools: Any) -> None:
    """Chats have answers of different lengths, and each token counts the same wherever it is."""
    words = (*SMALL, "--data", chats_file, "--batch-size", 8, "--max-steps", 6, "--test-chats", 7)
    layouts = {"one": (1, ()), "two": (2, ("--accumulate", 2)), "shards": (2, ("--dp-replicate", 1))}
    curves, finals = {}, {}
    for name, (ranks, options) in layouts.items():
        run_dir = training.run("sft/train.py", name, *words, *options, ranks=ranks).run_dir
        curves[name] = tools.curve(run_dir, "loss", "gradient_norm")
        finals[name] = tools.records(run_dir, "final")[0]["test_loss"]
    for name in ("two", "shards"):
        assert finals[name] == pytest.approx(finals["one"], abs=1e-5)
        for step, values in curves[name].items():
            assert values == pytest.approx(curves["one"][step], abs=1e-5), (name, step)


def test_chats_start_from_a_model_of_hugging_faces(folder: Path, chats_file: Path, training: Any, tools: Any) -> None:
    """Its weights, its tokenizer and its chat template, from one folder."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=400, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, **shape
    )
    net = transformers.LlamaForCausalLM(config).eval()
    model = training.folder / "model"
    net.save_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(model)
    words = ("--model", model, "--data", chats_file, "--seq-len", 128, "--validation", 0.1, "--max-steps", 1, "--lr", 0)
    run_dir = training.run("sft/train.py", "run", *words).run_dir
    (made,) = (run_dir / "data").glob("chats-*")
    lessons = lib("chat_dataset").ChatDataset(made, json.loads((made / "chats.json").read_text()))
    summed = counted = 0.0
    for row in lessons.held_out(256):
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                net(torch.tensor([row.tokens[:-1]])).logits[0], torch.tensor(row.tokens[1:]), reduction="none"
            )
        summed += float((losses * torch.tensor(row.mask[1:])).sum())
        counted += sum(row.mask[1:])
    (final,) = tools.records(run_dir, "final")
    assert final["test_loss"] == pytest.approx(summed / counted, abs=2e-5)


@pytest.mark.parametrize(
    ("line", "words", "error"),
    [
        ("{}", (), "chats.jsonl, line 1: no list of messages"),
        ("{", (), "chats.jsonl, line 1: not JSON"),
        ("", (), "no file to read"),
        (json.dumps({"messages": CHAT}), ("--seq-len", 8), "0 chats to train on, 0 held out; 1 long"),
        (json.dumps({"messages": CHAT}), ("--validation", 0), "--validation 0.0: a share of the chats"),
    ],
)
def test_chats_that_cannot_be_learned_end_the_program(line: str, words: Any, error: str, training: Any) -> None:
    data = training.folder / "chats.jsonl"
    data.write_text(line + "\n")
    if not line:
        data = training.folder / "none"
        data.mkdir()
        (data / "a.csv").write_text("a")
    ended = training.start("sft/train.py", "run", "--data", data, "--seq-len", 256, *words, ranks=1, forked=True)
    assert ended.wait() == [1]
    assert error in ended.output()
    assert "Traceback" not in ended.output()


def test_bad_chats_are_left_out_and_counted(chats_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("not JSON\n" + chats_file.read_text() + '{"messages": []}\n')
    given = {"data": path, "tokenizer": None, "chat_template": None, "model": None, "turns": "every", "skip_bad": True}
    args = types.SimpleNamespace(**given, validation=0.1, seq_len=64)
    made, told = lib("chat_dataset").made(args, tmp_path / "data")
    counts = told["counts"]
    assert (counts["bad"], counts["long"], counts["train"] + counts["validation"]) == (2, 2, 240)
    assert lib("chat_dataset").said(counts).endswith("held out; 2 bad, 2 long, left out")
    # Every epoch has each chat once, in another order.
    lessons = lib("chat_dataset").ChatDataset(made, told)
    size = counts["train"]
    order = [*lessons._order(0, 2 * size, 1)]
    assert sorted(order[:size]) == sorted(order[size:]) == [*range(size)]
    assert order[:size] != order[size:]
    assert order == [place for step in range(2 * size // 2) for place in lessons._order(2 * step, 2, 1)]
    assert len(lessons.held_out(5)) == 5


# ---- rewards ----


@pytest.fixture
def reward_file(tmp_path: Path) -> Iterator[Any]:
    """Writes reward.py with a function of this body, and opens it."""

    def write(body: str, name: str = "score") -> Any:
        path = tmp_path / "reward.py"
        path.write_text(f"def score(prompt, completion, problem):\n    {body}\n")
        return lib("rewards").opened(f"{path}:{name}")

    yield write
    sys.path[:] = [one for one in sys.path if one != str(tmp_path)]


def test_a_reward_gets_prompt_completion_and_problem(reward_file: Any) -> None:
    made = reward_file("return problem['worth'] * (completion == problem['answer']) if prompt == '1+1=' else -1")
    assert made("1+1=", "2", {"answer": "2", "worth": 3}) == 3.0
    assert made("2+1=", "2", {"answer": "2", "worth": 3}) == -1.0


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return 1 / 0", "reward.py, line 2: ZeroDivisionError: division by zero"),
        ("return json.loads('{')", "reward.py, line 2: NameError"),
        ("return completion", "it returned 'x', which is not a number"),
        ("return None", "it returned None, which is not a number"),
        ("return True", "it returned True, which is not a number"),
        ("return float('nan')", "it returned nan, which is not finite"),
    ],
)
def test_a_fault_of_a_reward_is_one_error_with_its_line(reward_file: Any, body: str, error: str) -> None:
    with pytest.raises(lib("faults").Refused) as refused:
        reward_file(body)("p", "x", {})
    assert error in refused.value.message


def test_a_reward_that_cannot_be_loaded_says_why(reward_file: Any, tmp_path: Path) -> None:
    refused = lib("faults").Refused
    with pytest.raises(refused, match=r"reward\.py has no function sccore"):
        reward_file("return 1.0", "sccore")
    with pytest.raises(refused, match=r"reward\.py, line 2: not Python"):
        reward_file("return (")
    for which, why in (("reward.py", "not written as"), (f"{tmp_path}/none.py:score", "no such file")):
        with pytest.raises(refused, match=why):
            lib("rewards").opened(which)
    (tmp_path / "reward.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(refused, match=r"reward\.py, line 1: ModuleNotFoundError"):
        lib("rewards").opened(f"{tmp_path}/reward.py:score")
