"""Compares `kit prepare-data` with datasets.map and Megatron's preprocess_data: same text, tokenizer and number of processes.

    python -m benchmarks data --python .train-venv/bin/python --megatron-lm ~/Megatron-LM

The text is the source and documentation of the packages of --python, one document for each file, as one .jsonl. The tokenizer is a
byte pair encoding of 16,384 tokens that is trained on it. Each tool ends with token files that a program can map: datasets.map
writes arrow, and its tokens are not packed. --python needs tokenizers and datasets, and for Megatron transformers, six, regex and
triton. The time for a single document is a tool's start, which the ratios leave out. CPU seconds are those of all its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._common import ROOT, Goal, report

TOKENIZER = """
import json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
source, folder = sys.argv[1:]
made = Tokenizer(models.BPE())
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=16384, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
made.train_from_iterator((json.loads(line)["text"] for line, _ in zip(open(source), range(600))), trainer)
made.save(folder + "/tokenizer.json")
described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "model_max_length": 10**9}
json.dump(described, open(folder + "/tokenizer_config.json", "w"))
"""

# From the documentation of datasets: a batched map over several processes.
MAP = """
import sys
from datasets import load_dataset
from tokenizers import Tokenizer
source, tokenizer, target, processes = sys.argv[1:]
made = Tokenizer.from_file(tokenizer + "/tokenizer.json")
end = made.token_to_id("<|endoftext|>")
def ids(batch):
    return {"ids": [one.ids + [end] for one in made.encode_batch(batch["text"], add_special_tokens=False)]}
if __name__ == "__main__":
    text = load_dataset("json", data_files=source, split="train", cache_dir=target + "/cache")
    text.map(ids, batched=True, num_proc=int(processes), remove_columns=["text"]).save_to_disk(target + "/set")
"""

# The least work of any tool, in one process: read the lines, encode their text, and drop the tokens.
ALONE = """
import json, sys
from tokenizers import Tokenizer
source, tokenizer = sys.argv[1:]
made, texts, size = Tokenizer.from_file(tokenizer + "/tokenizer.json"), [], 0
for line in open(source):
    texts.append(json.loads(line)["text"])
    size += len(texts[-1])
    if size > 1 << 20:
        made.encode_batch_fast(texts, add_special_tokens=False)
        texts, size = [], 0
made.encode_batch_fast(texts, add_special_tokens=False)
"""
FLOOR = "the tokenizer alone"


def main(words: list[str]) -> int:
    """Print the table. Returns 1 when the kit is slower."""
    args = _parse(words)
    with tempfile.TemporaryDirectory(prefix="kit-bench-data-") as name:
        folder = Path(name)
        large, small = folder / "large.jsonl", folder / "small.jsonl"
        size = _text(args.python, large, args.mb << 20)
        with large.open(encoding="utf-8") as lines:
            small.write_text(lines.readline(), encoding="utf-8")
        tokenizer = folder / "tokenizer"
        tokenizer.mkdir()
        subprocess.run([args.python, "-c", TOKENIZER, str(large), str(tokenizer)], check=True)
        took: dict[str, list[tuple[float, float]]] = {}
        for turn in range(args.rounds):
            for way in ("kit", "datasets.map", *(["preprocess_data"] if args.megatron_lm else []), FLOOR):
                target = folder / f"{way}-{turn}"
                target.mkdir()
                start = _timed(args, way, small, tokenizer, target)
                whole = _timed(args, way, large, tokenizer, target)
                took.setdefault(way, []).append((whole[0] - start[0], whole[1] - start[1]))
                print(
                    f"{way}: {whole[0]:.1f} s, {start[0]:.1f} s of them its start; CPU {whole[1]:.1f} s",
                    file=sys.stderr,
                )
        _same(folder, bool(args.megatron_lm))
        return report(_goals(took, size))


def _parse(words: list[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(prog="benchmarks data", description=__doc__)
    made.add_argument("--python", default=sys.executable)
    made.add_argument(
        "--megatron-lm", type=Path, default=os.environ.get("MEGATRON_LM"), help="a checkout; else left out"
    )
    made.add_argument("--mb", type=int, default=40, help="of text")
    made.add_argument("--rounds", type=int, default=2)
    made.add_argument("--processes", type=int, default=2)
    return made.parse_args(words)


def _text(python: str, target: Path, most: int) -> int:
    """Write documents from the installed packages to one .jsonl. Returns its bytes."""
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    )
    written = 0
    with target.open("w", encoding="utf-8") as file:
        for path in sorted(Path(found.stdout.strip()).rglob("*")):
            if path.suffix not in {".py", ".md", ".rst", ".txt"} or not path.is_file():
                continue
            # ensure_ascii off: the line holds the text itself, as in a crawl.
            text = path.read_bytes().decode(errors="replace")
            written += file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n") if text else 0
            if written > most:
                break
    return target.stat().st_size


def _timed(args: argparse.Namespace, way: str, source: Path, tokenizer: Path, target: Path) -> tuple[float, float]:
    """Seconds by the clock and CPU seconds, of all processes."""
    target = target / source.stem
    target.mkdir()
    processes, env = str(args.processes), dict(os.environ)
    if way == "kit":
        env["PYTHONPATH"] = str(ROOT / "launchers")
        words = [
            "--to",
            str(target / "set"),
            "--tokenizer",
            str(tokenizer),
            "--processes",
            processes,
            "--validation",
            "0",
        ]
        argv = [args.python, str(ROOT / "launchers/prepare/prepare.py"), str(source), *words]
    elif way == "datasets.map":
        env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
        program = target / "map.py"
        program.write_text(MAP, encoding="utf-8")
        argv = [args.python, str(program), str(source), str(tokenizer), str(target), processes]
    elif way == FLOOR:
        env["TOKENIZERS_PARALLELISM"] = "false"
        argv = [args.python, "-c", ALONE, str(source), str(tokenizer)]
    else:
        env |= {"PYTHONPATH": str(args.megatron_lm), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        words = ["--input", str(source), "--output-prefix", str(target / "set"), "--workers", processes, "--append-eod"]
        words += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tokenizer), "--legacy-tokenizer"]
        argv = [args.python, str(args.megatron_lm / "tools/preprocess_data.py"), *words]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{way}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _same(folder: Path, megatron: bool) -> None:
    """Check that the kit's shards, one after the other, equal Megatron's .bin to the byte."""
    made = folder / "kit-0/large/set"
    shards = json.loads((made / "prepared.json").read_text())["shards"]["train"]
    tokens = b"".join((made / f"{one['name']}.bin").read_bytes() for one in shards)
    if megatron:
        (theirs,) = (folder / "preprocess_data-0/large").glob("*.bin")
        if theirs.read_bytes() != tokens:
            raise SystemExit("the tokens differ from Megatron's")
    print(f"{len(tokens) // 2:,} tokens in {len(shards)} shards" + (", Megatron's to the byte" if megatron else ""))


def _goals(took: dict[str, list[tuple[float, float]]], size: int) -> list[Goal]:
    middle = {way: [statistics.median(column) for column in zip(*found, strict=True)] for way, found in took.items()}
    goals = []
    for way, (seconds, cpu) in middle.items():
        goals += [
            Goal(name=f"{way}: text", value=size / seconds / 1e6, unit="MB/s"),
            Goal(name=f"{way}: CPU", value=cpu, unit="s"),
        ]
    goals.append(Goal(name=f"kit / {FLOOR}, in CPU seconds", value=middle["kit"][1] / middle[FLOOR][1]))
    for way, found in middle.items():
        if way not in {"kit", FLOOR}:
            names = ("by the clock", "in CPU seconds")
            for name, theirs, ours in zip(names, found, middle["kit"], strict=True):
                bound = 1.0 if name == names[0] else None
                goals.append(Goal(name=f"{way} / kit, {name}", value=theirs / ours, bound=bound, at_least=True))
    return goals
