"""Text that users have: which files are read and how, what becomes of every document, and shards that survive kill -9."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
ENV = {**os.environ, "PYTHONPATH": str(LAUNCHERS)}
pytestmark = [pytest.mark.timeout(120), pytest.mark.smoke]
np = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def _lib_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHERS))


TEXTS = [f"Document {number}: {'naïve café ' * (number % 7 + 1)}\n{'line ' * (number % 31)}" for number in range(300)]


def prepared(*words: object, code: int = 0) -> Any:
    """What the program says with --json-lines: its last word, or its error."""
    argv = [sys.executable, "-m", "lib.prepare", *map(str, words), "--json-lines"]
    done = subprocess.run(argv, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if code:
        return next(one for one in map(json.loads, reversed(done.stderr.splitlines())) if "error" in one)
    return json.loads(done.stdout)


def write(path: Path, texts: list[str], key: str = "text") -> Path:
    """Texts as .jsonl, .jsonl.gz, .jsonl.zst, .parquet, a dataset on disk, or a folder of .txt, by the name of the path."""
    lines = "".join(json.dumps({"id": n, key: text}) + "\n" for n, text in enumerate(texts)).encode()
    if path.name.endswith(".gz"):
        import gzip

        path.write_bytes(gzip.compress(lines))
    elif path.name.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard")
        # Two frames, as `cat a.zst b.zst` makes them.
        half = lines.index(b"\n", len(lines) // 2) + 1
        path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in (lines[:half], lines[half:])))
    elif path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"id": list(range(len(texts))), key: texts}), path, row_group_size=64)
    elif path.suffix == ".dataset":
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_dict({key: texts}).save_to_disk(path, num_shards=2)
    elif path.suffix == ".jsonl":
        path.write_bytes(lines)
    else:
        path.mkdir()
        for number, text in enumerate(texts):
            (path / f"{number:05d}.txt").write_text(text)
    return path


def documents_of(folder: Path) -> dict[str, list[bytes]]:
    """The documents of a set of bytes, by part."""
    from lib import shards

    found: dict[str, list[bytes]] = {}
    for one in json.loads((folder / "prepared.json").read_text())["shards"].items():
        part, listed = one
        found[part] = []
        for shard in listed:
            content, first = (folder / f"{shard['name']}.bin").read_bytes(), 0
            for length in shards.index(folder / shard["name"]).lengths:
                found[part].append(content[first : first + length])
                first += length
    return found


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.dataset", "texts"])
def test_every_kind_of_file_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    made = prepared(write(tmp_path / name, TEXTS), "--to", tmp_path / "set")
    found = documents_of(tmp_path / "set")
    assert sorted(found["train"] + found["validation"]) == sorted(text.encode() + b"\xff" for text in TEXTS)
    assert found["train"] == [text for text in (t.encode() + b"\xff" for t in TEXTS) if text in set(found["train"])]
    counted = made["documents"]
    assert counted["read"] == 300 == counted["train"] + counted["validation"]
    assert 2 <= counted["validation"] <= 40
    assert made["tokens"]["train"] == sum(map(len, found["train"]))


def test_a_line_belongs_to_one_unit_wherever_it_is_cut(tmp_path: Path) -> None:
    from lib import documents

    path = write(tmp_path / "a.jsonl", TEXTS[:12])
    size = path.stat().st_size
    for at in range(1, size):
        pieces = [
            documents.FilePart(path=str(path), kind=".jsonl", size=0, first=first, last=last)
            for first, last in ((0, at), (at, size))
        ]
        assert [text for piece in pieces for text in documents.read(piece, "text")] == TEXTS[:12], at


def test_the_digest_does_not_depend_on_processes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [text * 200 for text in TEXTS * 10])
    assert path.stat().st_size > 20 << 20, "several units and processes"
    one = prepared(path, "--to", tmp_path / "one", "--processes", 1)
    two = prepared(path, "--to", tmp_path / "two", "--processes", 2)
    assert one["digest"] == two["digest"]
    assert len(json.loads((tmp_path / "one/prepared.json").read_text())["shards"]["train"]) > 10
    assert prepared(path, "--to", tmp_path / "other", "--validation", 0.2)["digest"] != one["digest"]


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    """kill -9 of the program: its processes end too, what was done is not done again, and the set is the same."""
    path = write(tmp_path / "a.jsonl", [text * 200 for text in TEXTS * 10])
    whole = prepared(path, "--to", tmp_path / "whole")
    argv = [sys.executable, "-m", "lib.prepare", str(path), "--to", str(tmp_path / "set"), "--processes", "2"]
    work = tmp_path / ".set.preparing"
    for least in (2, 8):
        program = subprocess.Popen(argv, env=ENV, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while len(list(work.glob("unit-*.json"))) < least and time.monotonic() < deadline:
            time.sleep(0.005)
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert not (tmp_path / "set").exists()
        while any(Path(f"/proc/{child}/exe").exists() for child in children):
            assert time.monotonic() < deadline, "a process of the killed program lives"
            time.sleep(0.01)
    done = sorted(work.glob("unit-*.json"))
    assert len(done) >= 8
    # Were a unit that is done made again, this would be gone from its record.
    record = json.loads(done[0].read_text())
    record["counts"]["mended"] = 1000
    done[0].write_text(json.dumps(record))
    made = prepared(path, "--to", tmp_path / "set")
    assert made["digest"] == whole["digest"]
    assert made["documents"]["mended"] == 1000
    assert not work.exists()


def test_what_was_begun_of_another_order_is_begun_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", TEXTS)
    work = tmp_path / ".set.preparing"
    work.mkdir()
    (work / "order.json").write_text('{"text_key": "other"}')
    (work / "unit-00000.json").write_text('{"number": 0}')
    assert prepared(path, "--to", tmp_path / "set")["documents"]["read"] == 300


def test_no_document_is_dropped_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text}) for text in TEXTS[:100]]
    lines[3:3] = ['{"text": ""}', '{"text": "half a pair \\ud800"}', "", '{"content": 1}', "not json"]
    path.write_text("\n".join(lines))
    refused = prepared(path, "--to", tmp_path / "set", code=7)
    assert re.search(r"a\.jsonl, byte \d+: no text under 'text' \(content\)", refused["error"])
    assert "--skip-bad" in refused["hint"]
    assert not (tmp_path / "set").exists()
    made = prepared(path, "--to", tmp_path / "set", "--skip-bad")["documents"]
    assert (made["read"], made["empty"], made["bad"], made["mended"]) == (104, 1, 2, 1)
    assert made["train"] + made["validation"] == 101


def test_copies_of_a_document_are_on_one_side(tmp_path: Path) -> None:
    prepared(write(tmp_path / "a.jsonl", TEXTS * 3), "--to", tmp_path / "set")
    found = documents_of(tmp_path / "set")
    assert not set(found["train"]) & set(found["validation"])


def test_the_parts_of_a_dataset_are_kept(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"train": TEXTS[:200], "validation": TEXTS[200:]}
    made = datasets.DatasetDict({part: datasets.Dataset.from_dict({"body": texts}) for part, texts in parts.items()})
    made.save_to_disk(tmp_path / "hub")
    counted = prepared(tmp_path / "hub", "--to", tmp_path / "set", "--text-key", "body")["documents"]
    assert (counted["train"], counted["validation"]) == (200, 100)
    refused = prepared(tmp_path / "hub", "--to", tmp_path / "other", code=7)
    assert "no column 'text'" in refused["error"]
    assert "body" in refused["hint"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"a.parquet": b"PAR1 not so"}, "cannot be read|not a file that pyarrow"),
        ({"a.jsonl.gz": b"\x1f\x8b\x08\0damaged"}, "cannot be read to its end"),
        ({"a.jsonl.zst": b"\x28\xb5\x2f\xfddamaged"}, "cannot be read to its end"),
        ({"a.bin": b"1"}, "no file to read"),
        ({"a.jsonl": b"[1, 2]\n"}, "it is not an object"),
        ({"a.jsonl": b""}, "no document with text"),
        ({"a.txt": b"one document"}, "no document with text falls into"),
    ],
)
def test_what_cannot_be_read_is_one_error(tmp_path: Path, content: dict[str, bytes], error: str) -> None:
    if "parquet" in next(iter(content)):
        pytest.importorskip("pyarrow")
    if "zst" in next(iter(content)):
        pytest.importorskip("zstandard")
    (tmp_path / "in").mkdir()
    for name, text in content.items():
        (tmp_path / "in" / name).write_bytes(text)
    assert re.search(error, prepared(tmp_path / "in", "--to", tmp_path / "set", code=7)["error"])
    assert not (tmp_path / "set").exists()


def test_a_folder_that_is_not_the_programs_is_not_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/thesis.tex").write_text("mine")
    assert "not replaced" in prepared(path, "--to", tmp_path / "set", "--force", code=7)["error"]
    prepared(path, "--to", tmp_path / "two")
    assert "the target exists already" in prepared(path, "--to", tmp_path / "two", code=7)["error"]
    path.write_text(path.read_text() + '{"text": "another"}\n')
    assert prepared(path, "--to", tmp_path / "two", "--force")["documents"]["read"] == 301
    assert {one.name for one in tmp_path.iterdir()} == {"a.jsonl", "set", "two"}


# ---- tokenizers ----


def trained(folder: Path, texts: list[str]) -> Path:
    """A tokenizer of 500 tokens, as a Hugging Face folder."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<stop>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<stop>"}}))
    return folder


def tiktoken_file(folder: Path) -> Path:
    """cl100k_base's pattern over the 256 bytes and two merges."""
    import base64

    pytest.importorskip("tiktoken")
    ranks = [bytes([number]) for number in range(256)] + [b"Do", b"li"]
    path = folder / "cl100k_base.tiktoken"
    path.write_text("".join(f"{base64.b64encode(one).decode()} {number}\n" for number, one in enumerate(ranks)))
    return path


@pytest.mark.parametrize("kind", ["folder", "json", "tiktoken"])
def test_a_set_holds_what_the_tokenizer_gives(tmp_path: Path, kind: str) -> None:
    from lib import shards, vocabulary

    if kind == "tiktoken":
        which: Path = tiktoken_file(tmp_path)
        words: list[str] = []
    else:
        folder = trained(tmp_path / "tok", TEXTS)
        which, words = (folder, []) if kind == "folder" else (folder / "tokenizer.json", ["--separator", "<stop>"])
    made = vocabulary.opened(str(which), *words[1:])
    prepared(write(tmp_path / "a.jsonl", TEXTS), "--to", tmp_path / "set", "--tokenizer", which, *words)
    described = json.loads((tmp_path / "set/prepared.json").read_text())
    assert described["dtype"] == ("int32" if kind == "tiktoken" else "uint16")
    assert described["end"] == (100257 if kind == "tiktoken" else 0)
    found = []
    for shard in described["shards"]["train"]:
        tokens = np.fromfile(tmp_path / "set" / f"{shard['name']}.bin", described["dtype"])
        index = shards.index(tmp_path / "set" / shard["name"])
        assert tokens.max() < described["vocabulary"]
        for part in np.split(tokens, np.cumsum(index.lengths)[:-1]):
            assert part[-1] == described["end"]
            found.append(made.decode(part[:-1].tolist()))
    assert found == [text for text in TEXTS if text in set(found)]
    assert len(found) == described["documents"]["train"]


def test_a_tokenizer_that_names_no_end_asks_for_one(tmp_path: Path) -> None:
    folder = trained(tmp_path / "tok", TEXTS)
    (folder / "tokenizer_config.json").unlink()
    path = write(tmp_path / "a.jsonl", TEXTS)
    refused = prepared(path, "--to", tmp_path / "set", "--tokenizer", folder, code=7)
    assert "does not say which of its tokens ends a document" in refused["error"]
    assert "<pad>, <stop>" in refused["hint"]
    assert prepared(path, "--to", tmp_path / "set", "--tokenizer", folder, "--separator", "none")["tokens"]["train"]


# ---- what a program reads ----


def loaded(tmp_path: Path, *words: object, context: int = 16) -> Any:
    from lib import options, text

    parser = argparse.ArgumentParser()
    options.add_text(parser)
    return text.load(
        argparse.Namespace(context=context, **vars(parser.parse_args([*map(str, words)]))), tmp_path / "run"
    )


def test_windows_are_the_stream_and_cross_shards(tmp_path: Path) -> None:
    prepared(write(tmp_path / "a.jsonl", [text * 300 for text in TEXTS]), "--to", tmp_path / "set")
    corpus = loaded(tmp_path, "--data", tmp_path / "set", context=100_003)
    shards = json.loads((tmp_path / "set/prepared.json").read_text())["shards"]["train"]
    assert len(shards) > 3
    stream = b"".join((tmp_path / "set" / f"{one['name']}.bin").read_bytes() for one in shards)
    windows = [corpus.train[number] for number in range(len(corpus.train))]
    assert bytes(token for tokens, _ in windows for token in tokens.tolist()) == stream[: len(windows) * 100_003]
    assert all(bytes(t[1:].tolist()) == bytes(w[:-1].tolist()) for t, w in windows)
    assert bytes(windows[-1][1].tolist()) == stream[(len(windows) - 1) * 100_003 + 1 :][:100_003]
    assert len(stream) - len(windows) * 100_003 <= 100_003


def test_text_is_tokenized_once_for_all_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", TEXTS)
    first = loaded(tmp_path, "--data", path)
    made = (tmp_path / "run/data/train-00000.bin").stat()
    assert loaded(tmp_path, "--data", path).told == first.told
    assert (tmp_path / "run/data/train-00000.bin").stat().st_ino == made.st_ino
    path.write_text(path.read_text() + '{"text": "another document to train on"}\n')
    assert loaded(tmp_path, "--data", path).told != first.told


def test_megatrons_files_are_read_and_its_reader_reads_ours(tmp_path: Path) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "m.bin"), dtype=np.uint16)
    texts = [list(range(number, number + 40)) for number in range(60)]
    for ids in texts:
        builder.add_document(torch.tensor(ids), [len(ids)])
    builder.finalize(str(tmp_path / "m.idx"))
    for name in ("m", "m.bin", "m.idx"):
        corpus = loaded(tmp_path, "--data", tmp_path / name, "--vocabulary", 100)
        assert corpus.vocabulary == 128
        assert corpus.train.tokens == 57 * 40, "the last three documents are held out"
        assert corpus.train[0][0].tolist() == texts[0][:16]
        assert corpus.test[0][0].tolist() == texts[57][:16]
    with pytest.raises(SystemExit, match=r"token 9[0-9], and the vocabulary has 90"):
        list(loaded(tmp_path, "--data", tmp_path / "m", "--vocabulary", 90).test)

    prepared(write(tmp_path / "a.jsonl", TEXTS), "--to", tmp_path / "set")
    theirs = indexed.IndexedDataset(str(tmp_path / "set/train-00000"))
    ours = documents_of(tmp_path / "set")["train"]
    assert len(theirs) == len(ours) == len(theirs.document_indices) - 1
    assert [bytes(theirs[number]) for number in range(len(ours))] == ours


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--data", "{set}", "--tokenizer", "{tok}"], "was made with another tokenizer, bytes"),
        (["--data", "{cut}"], "train-00000.bin: missing or cut off"),
        (["--data", "{mega}"], "do not name the vocabulary of their tokens"),
        (["--data", "{mega}", "--vocabulary", "300", "--attend", "within"], "no token ends a document"),
        (["--data", "{nowhere}"], "no such file"),
        (["--data", "{set}", "--validation", "0"], ""),
        (["--data", "{lines}", "--validation", "1"], "a share of the documents"),
        (["--data", "{lines}", "--vocabulary", "300"], "only for .bin/.idx"),
    ],
)
def test_data_that_cannot_be_is_one_error(tmp_path: Path, words: list[str], error: str) -> None:
    from lib.faults import Refused

    places = {name: tmp_path / name for name in ("set", "cut", "nowhere")} | {"mega": tmp_path / "set/train-00000"}
    places["lines"] = write(tmp_path / "a.jsonl", TEXTS)
    places["tok"] = trained(tmp_path / "tok", TEXTS)
    for name in ("set", "cut"):
        prepared(places["lines"], "--to", places[name])
    (places["cut"] / "train-00000.bin").write_bytes(b"")
    if not error:
        assert loaded(tmp_path, *[word.format(**places) for word in words]).train
        return
    with pytest.raises((Refused, SystemExit)) as refused:
        loaded(tmp_path, *[word.format(**places) for word in words])
    assert error in str(refused.value)


def test_within_a_document_nothing_before_it_is_seen(tmp_path: Path) -> None:
    """The logits of a document are the same whatever stands before it, and others with --attend across."""
    torch = pytest.importorskip("torch")
    from lib import model

    torch.manual_seed(0)
    shape = model.GPTShape(layers=2, heads=2, dim=32, context=24)
    nets = {apart: model.GPT(shape, apart=apart).eval() for apart in (None, 255)}
    nets[None].load_state_dict(nets[255].state_dict())
    own = torch.randint(0, 200, (1, 10))
    rows = [torch.cat([torch.randint(0, 200, (1, 13)), torch.tensor([[255]]), own], 1) for _ in range(2)]
    within, other = (nets[255](row)[:, 13:] for row in rows)
    assert torch.allclose(within, other, atol=1e-6)
    assert not torch.allclose(nets[None](rows[0])[:, 13:], nets[None](rows[1])[:, 13:], atol=1e-3)
    # The first document is what it would be by itself.
    assert torch.allclose(nets[255](rows[0])[:, :13], nets[None](rows[0][:, :13]), atol=1e-6)


# ---- every program on one prepared set ----

# A rate at which eight steps show: the default for weights of Hugging Face is far lower.
RATE = ("--warmup", 2, "--lr", 3e-3)
SIZE = ("--layers", 2, "--dim", 64, "--context", 64, "--steps", 8, "--batch-size", 8, "--log-every", 1, *RATE)
SMALL = (*SIZE, "--test-windows", 16)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation of the installed packages, half of it .jsonl and half .parquet, as tokens of a tokenizer made of it."""
    from importlib import metadata

    folder = tmp_path_factory.mktemp("corpus")
    described = [one.read_text("METADATA") or "" for one in metadata.distributions()]
    texts = [text for one in described if (text := one.partition("\n\n")[2].strip())]
    assert sum(map(len, texts)) > 50_000, "the READMEs of the packages that are installed"
    (folder / "docs").mkdir()
    write(folder / "docs/a.jsonl", texts[::2])
    write(folder / "docs/b.parquet", texts[1::2])
    words = ("--tokenizer", trained(folder / "tok", texts), "--validation", 0.1)
    made = prepared(folder / "docs", "--to", folder / "set", *words)
    assert made["documents"]["train"] + made["documents"]["validation"] == len(texts)
    return folder / "set"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of Hugging Face's with drawn weights, from which every program begins."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (make training)")
    import torch

    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=512, max_position_embeddings=64, tie_word_embeddings=False, **size)
    folder = tmp_path_factory.mktemp("weights")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def trained_on(corpus: Path, training: Any, tools: Any, program: str, *options: object) -> tuple[Any, float, str]:
    """Loss and gradient norm of each step, the test loss, and what the checkpoint says of the data."""
    run_dir = training.run(program, program.partition("/")[0], *SMALL, *options, "--data", corpus).run_dir
    latest = run_dir / "checkpoints" / (run_dir / "checkpoints/latest").read_text().strip()
    told = json.loads((latest / "complete.json").read_text())["arguments"]["data"]
    return tools.curve(run_dir, "loss", "gradient_norm"), tools.records(run_dir, "final")[0]["test_loss"], told


@pytest.fixture(scope="module")
def by_ddp(corpus: Path, weights: Path, module_training: Any, tools: Any) -> tuple[Any, float, str]:
    return trained_on(corpus, module_training, tools, "ddp/train_gpt.py", "--accumulate", 2, "--init-from", weights)


def assert_same_curve(found: tuple[Any, float, str], expected: tuple[Any, float, str]) -> None:
    assert list(found[0]) == list(range(1, 9))
    apart = np.abs(np.array([*found[0].values()]) - np.array([*expected[0].values()])).max(0)
    print(
        f"largest difference: loss {apart[0]:.1e}, gradient norm {apart[1]:.1e}, test loss {found[1] - expected[1]:.1e}"
    )
    for step, values in found[0].items():
        assert values == pytest.approx(expected[0][step], abs=1e-5), step
    assert found[1] == pytest.approx(expected[1], abs=1e-5)
    assert found[2] == expected[2]


def test_ddp_trains_on_the_documentation_of_packages(corpus: Path, by_ddp: Any) -> None:
    curve, test_loss, told = by_ddp
    assert told == json.loads((corpus / "prepared.json").read_text())["digest"]
    assert curve[1][0] == pytest.approx(6.24, abs=0.15), "the logarithm of 512: 500 tokens, rounded up"
    assert curve[8][0] < curve[1][0] - 0.1
    assert test_loss < curve[1][0]


def test_fsdp_has_the_same_curve_on_one_prepared_set(
    corpus: Path, weights: Path, by_ddp: Any, training: Any, tools: Any
) -> None:
    assert_same_curve(trained_on(corpus, training, tools, "fsdp/train.py", "--init-from", weights), by_ddp)


def test_zero_3_has_the_same_curve_on_one_prepared_set(
    corpus: Path, weights: Path, by_ddp: Any, training: Any, tools: Any
) -> None:
    pytest.importorskip("deepspeed")
    config = training.folder / "zero3.json"
    zero = {"stage": 3}
    config.write_text(
        json.dumps(
            {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0}
            | {"zero_optimization": zero, "zero_force_ds_cpu_optimizer": False}
        )
    )
    size = [*SIZE[:8], *SIZE[10:], "--test-windows", 16]  # the configuration has the batch
    words = (*size, "--ds-config", config, "--data", corpus, "--init-from", weights)
    run_dir = training.run("deepspeed/train.py", "zero3", *words).run_dir
    curve, final = tools.curve(run_dir, "loss", "gradient_norm"), tools.records(run_dir, "final")[0]
    assert_same_curve((curve, final["test_loss"], by_ddp[2]), by_ddp)


@pytest.mark.parametrize("options", [(), ("--distributed-optimizer",)], ids=["whole", "distributed-optimizer"])
def test_megatron_has_the_same_curve_on_one_prepared_set(  # noqa: PLR0917 - the fixtures after the case
    options: tuple[str, ...], corpus: Path, weights: Path, by_ddp: Any, training: Any, tools: Any
) -> None:
    pytest.importorskip("megatron")
    words = (*options, "--init-from", weights)
    assert_same_curve(trained_on(corpus, training, tools, "megatron/train.py", *words), by_ddp)


def test_megatron_within_documents_has_one_curve_on_one_prepared_set(
    corpus: Path, weights: Path, training: Any, tools: Any
) -> None:
    """One rank, two that are data parallel, and ddp."""
    pytest.importorskip("megatron")
    words = ("--attend", "within", "--init-from", weights, "--data", corpus)
    programs = (("megatron/train.py", 1), ("megatron/train.py", 2), ("ddp/train_gpt.py", 2))
    alone, parallel, by_ddp = (
        tools.curve(
            training.run(program, f"{program.partition('/')[0]}{ranks}", *SMALL, *words, ranks=ranks).run_dir, "loss"
        )
        for program, ranks in programs
    )
    assert alone[8][0] < alone[1][0] - 0.1
    for step, values in alone.items():
        assert values == pytest.approx(parallel[step], abs=1e-5), step
        assert values == pytest.approx(by_ddp[step], abs=1e-5), step


def test_diloco_trains_on_one_prepared_set(corpus: Path, weights: Path, by_ddp: Any, training: Any, tools: Any) -> None:
    """A single group: its inner steps before the first average are ddp's."""
    pytest.importorskip("torchft")
    words = (*SMALL, "--sync-every", 8, "--beta2", 0.95, "--init-from", weights)
    run_dir = training.run("diloco/train.py", "diloco", *words, "--data", corpus, "--min-replicas", 1).run_dir
    (folder,) = [path.parent for path in run_dir.rglob("metrics.jsonl")]
    curve = tools.curve(folder, "loss", "gradient_norm")
    assert list(curve) == list(range(1, 9))
    for step, values in curve.items():
        assert values == pytest.approx(by_ddp[0][step], abs=1e-5), step


def test_a_folder_made_from_the_same_is_taken_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", TEXTS)
    made = prepared(path, "--to", tmp_path / "set")
    before = (tmp_path / "set/prepared.json").stat()
    assert prepared(path, "--to", tmp_path / "set", "--reuse")["digest"] == made["digest"]
    assert (tmp_path / "set/prepared.json").stat().st_mtime_ns == before.st_mtime_ns
    write(tmp_path / "a.jsonl", [*TEXTS, "one more"])
    assert prepared(path, "--to", tmp_path / "set", "--reuse")["digest"] != made["digest"]
