"""Text as tokens: bytes, a tokenizers JSON, a Hugging Face folder, or tiktoken's files. The packages are imported when used.

A document ends with one token, `end`. A model learns from it where documents end, and with --attend within reads no further back.
For bytes it is 0xFF, which no UTF-8 text has.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .faults import Refused, imported

Tokens: TypeAlias = np.ndarray[Any, Any]
ROUND_TO = 128  # a model's vocabulary is a multiple of it, so that tensor parallel ranks divide it and GPUs are fast
BYTES = "bytes"
# What published tokenizers call the token after a document, where their configuration does not say.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>")
# The end of a document, and what opens and closes a turn of a chat: bytes that no UTF-8 text has.
_SPECIAL_BYTES = {"<|end|>": 0xFF, "<|turn|>": 0xFE, "<|endturn|>": 0xFD}
_HUGGING_FACE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer. size: ids are below it. end: the id that ends a document; None: none does.

    encode: texts -> the ids of each. chat: a text in which special tokens count as such -> its ids, and the character at which each
    begins. decode: ids -> text. special: text -> id of the special tokens.
    files: name -> content, of which `opened` makes the same again; digest: SHA-256 of them.
    """

    name: str
    size: int
    end: int | None
    encode: Callable[[list[str]], list[list[int]]]
    chat: Callable[[str], tuple[list[int], list[int]]]
    decode: Callable[[list[int]], str]
    special: dict[str, int]
    files: dict[str, bytes]

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the ids."""
        summed = hashlib.sha256(self.name.encode())
        for name, content in sorted(self.files.items()):
            summed.update(f"\n{name} {len(content)}\n".encode() + content)
        return summed.hexdigest()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every id and that Megatron's .idx has a number for."""
        return np.dtype(np.uint8 if self.size <= 2**8 else np.uint16 if self.size <= 2**16 else np.int32)

    def documents(self, texts: list[str]) -> tuple[Tokens, Tokens]:
        """The tokens of all texts, one after the other, each with its end; and how many are of each."""
        ending = [] if self.end is None else [self.end]
        if self.name == BYTES:
            ended = [text.encode() + bytes(ending) for text in texts]
            lengths = np.fromiter(map(len, ended), np.int32, len(ended))
            return np.frombuffer(b"".join(ended), np.uint8), lengths
        ids = self.encode(texts)
        lengths = np.fromiter(map(len, ids), np.int32, len(ids)) + len(ending)
        if ending:
            ids = [part for one in ids for part in (one, ending)]
        return np.fromiter(itertools.chain.from_iterable(ids), self.dtype, int(lengths.sum())), lengths


def opened(which: str, end: str | None = None) -> Vocabulary:
    """The tokenizer that --tokenizer names: `bytes`, a .json or .tiktoken file, or a folder with tokenizer.json.

    end: the special token after a document, by its text; `none` for none; else the tokenizer's own end of text.
    """
    if which == BYTES:
        return _bytes(end)
    path = Path(which)
    if path.is_dir():
        return _hugging_face(path, end)
    if path.suffix == ".tiktoken":
        return _tiktoken(path, end)
    if path.suffix == ".json":
        return _tokenizers(path.name, {"tokenizer.json": _read(path)}, end)
    raise Refused(
        f"--tokenizer {which}: neither bytes, nor a .json or .tiktoken file, nor a folder with tokenizer.json",
        hint="a path as the program sees it: mount it into the container",
    )


def rounded(size: int) -> int:
    """The vocabulary of a model for ids below `size`."""
    return -(-size // ROUND_TO) * ROUND_TO


def _bytes(end: str | None) -> Vocabulary:
    if end not in {None, "none"}:
        raise Refused(f"--separator {end}: bytes have no special tokens", hint="leave it out, or --separator none")
    return Vocabulary(
        name=BYTES,
        size=256,
        end=None if end == "none" else 0xFF,
        encode=lambda texts: [list(text.encode()) for text in texts],
        chat=_bytes_of_a_chat,
        special=_SPECIAL_BYTES,
        decode=lambda ids: bytes(ids).decode(errors="replace"),
        files={},
    )


def _bytes_of_a_chat(text: str) -> tuple[list[int], list[int]]:
    ids, starts, place = [], [], 0
    for part in re.split(f"({'|'.join(map(re.escape, _SPECIAL_BYTES))})", text):
        if part in _SPECIAL_BYTES:
            ids.append(_SPECIAL_BYTES[part])
            starts.append(place)
        else:
            for number, character in enumerate(part):
                content = character.encode(errors="replace")
                ids += content
                starts += [place + number] * len(content)
        place += len(part)
    return ids, starts


def _hugging_face(folder: Path, end: str | None) -> Vocabulary:
    files = {name: (folder / name).read_bytes() for name in _HUGGING_FACE if (folder / name).is_file()}
    if "tokenizer.json" not in files:
        raise Refused(
            f"--tokenizer {folder}: no tokenizer.json in it",
            hint="AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER) of transformers writes one",
        )
    if end is None:
        own = configuration(files).get("eos_token")
        end = own["content"] if isinstance(own, dict) else own
    return _tokenizers(folder.name, files, end)


def configuration(files: dict[str, bytes]) -> dict[str, Any]:
    """tokenizer_config.json of a Hugging Face folder; empty without one."""
    try:
        found = json.loads(files.get("tokenizer_config.json", b"{}"))
    except ValueError as error:
        raise Refused(f"tokenizer_config.json: not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _tokenizers(name: str, files: dict[str, bytes], end: str | None) -> Vocabulary:
    package = imported("tokenizers", "a tokenizer.json")
    try:
        made = package.Tokenizer.from_buffer(files["tokenizer.json"])
    except Exception as error:  # noqa: BLE001 - the Rust side raises Exception itself
        raise Refused(f"--tokenizer {name}: not a tokenizers JSON: {error}") from None
    made.no_truncation()
    made.no_padding()
    special = {added.content: number for number, added in made.get_added_tokens_decoder().items() if added.special}
    size = max(made.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(texts: list[str]) -> list[list[int]]:
        return [one.ids for one in made.encode_batch_fast(texts, add_special_tokens=False)]

    def chat(text: str) -> tuple[list[int], list[int]]:
        one = made.encode(text, add_special_tokens=False)
        return one.ids, [first for first, _ in one.offsets]

    return Vocabulary(
        name=name,
        size=size,
        end=_end(name, end, special),
        encode=encode,
        chat=chat,
        decode=lambda ids: str(made.decode(ids, skip_special_tokens=False)),
        special=special,
        files=files,
    )


def _tiktoken(path: Path, end: str | None) -> Vocabulary:
    """A file of tiktoken's, by the name of its encoding, such as cl100k_base.tiktoken: tiktoken has the pattern for the name."""
    tiktoken = imported("tiktoken", "a .tiktoken file")
    public = imported("tiktoken_ext.openai_public", "a .tiktoken file")
    content = _read(path)
    make = public.ENCODING_CONSTRUCTORS.get(path.stem)
    if make is None:
        known = ", ".join(sorted(public.ENCODING_CONSTRUCTORS))
        raise Refused(
            f"--tokenizer {path}: tiktoken knows no encoding {path.stem}", hint=f"name the file after one of {known}"
        )
    load = tiktoken.load.load_tiktoken_bpe
    # The encoding's own function would fetch the file; this one is here.
    public.load_tiktoken_bpe = lambda *_, **__: load(str(path))
    try:
        made = tiktoken.Encoding(**make())
    except (ValueError, AssertionError) as error:
        raise Refused(f"--tokenizer {path}: not the file of {path.stem}: {error}") from None
    finally:
        public.load_tiktoken_bpe = load
    special = {text: made.encode_single_token(text) for text in made.special_tokens_set}

    def chat(text: str) -> tuple[list[int], list[int]]:
        ids = made.encode(text, allowed_special="all")
        return ids, made.decode_with_offsets(ids)[1]

    return Vocabulary(
        name=path.name,
        size=made.n_vocab,
        end=_end(path.name, end, special),
        encode=lambda texts: [made.encode_ordinary(text) for text in texts],
        chat=chat,
        decode=made.decode,
        special=special,
        files={path.name: content},
    )


def _end(name: str, given: str | None, special: dict[str, int]) -> int | None:
    """The id of the token after a document."""
    if given == "none":
        return None
    for text in [given] if given else _ENDS:
        if text in special:
            return special[text]
    listed = ", ".join(sorted(special)[:12]) or "none at all"
    problem = f"has no special token {given!r}" if given else "does not say which of its tokens ends a document"
    raise Refused(f"--tokenizer {name} {problem}", hint=f"--separator TOKEN or none; its special tokens: {listed}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"--tokenizer {path}: {error.strerror}") from None
