"""Makes all that TorchTitan's debug model needs: a tokenizer of bytes, a text of sums, and the configuration that names both.

python prepare.py FOLDER

The configuration becomes FOLDER/config.toml. In a job, FOLDER is the run folder: the launcher looks for the configuration there.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG = """\
[metrics]
log_freq = 1

[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{tokenizer}"

[optimizer]
lr = 1e-3

[lr_scheduler]
warmup_steps = 2

[training]
local_batch_size = 2
seq_len = 128
dataset = "c4_test"
dataset_path = "{text}"
"""
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


def write_tokenizer(folder: Path) -> None:
    """One token for each of the 256 bytes, and two for the ends of a text."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), BEGIN, END]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BEGIN, END])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BEGIN, "eos_token": END}), encoding="utf-8")


def write_text(folder: Path) -> None:
    """200 documents of 40 sums, as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = (" ".join(f"{a} plus {b} is {a + b}." for b in range(40)) for a in range(200))
    lines = (json.dumps({"text": document}) + "\n" for document in documents)
    (folder / "sums.json").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Write the three into the folder of the command line."""
    folder = Path(sys.argv[1]).resolve()
    write_tokenizer(folder / "tokenizer")
    write_text(folder / "text")
    config = CONFIG.format(tokenizer=folder / "tokenizer", text=folder / "text")
    (folder / "config.toml").write_text(config, encoding="utf-8")


if __name__ == "__main__":
    main()
