"""Text as tokens: bytes, a tokenizers JSON, a Hugging Face folder, or tiktoken's files. Packages are imported when they are used.

One token, `end`, closes each document. From it a model learns where documents end. With --attend within, no token attends to a
document before its own. For bytes `end` is 0xFF, which no UTF-8 text contains.
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
ROUND_TO = 128  # a model's vocabulary is a multiple of it: tensor parallel ranks can then divide it, and GPUs are fast
BYTES = "bytes"
# Names that published tokenizers give to the token after a document. Used where their configuration names none.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>")
# The end of a document, and the start and end of a turn of a chat, as bytes that no UTF-8 text contains.
_SPECIAL_BYTES = {"<|end|>": 0xFF, "<|turn|>": 0xFE, "<|endturn|>": 0xFD}
_HUGGING_FACE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer. size: every id is below it. end: the id that ends a document, or None.

    encode: texts -> the ids of each. chat: a text in which special tokens are recognised -> its ids, and the character at which
    each id begins. decode: ids -> text. special: the text of each special token -> its id. files: name -> content, from which
    `opened` makes the same tokenizer. digest: SHA-256 of them.
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
        """SHA-256 of everything that decides the ids."""
        summed = hashlib.sha256(self.name.encode())
        for name, content in sorted(self.files.items()):
            summed.update(f"\n{name} {len(content)}\n".encode() + content)
        return summed.hexdigest()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every id and has a type code in Megatron's .idx."""
        return np.dtype(np.uint8 if self.size <= 2**8 else np.uint16 if self.size <= 2**16 else np.int32)

    def documents(self, texts: list[str]) -> tuple[Tokens, Tokens]:
        """The tokens of all texts, one after the other, each with its end token; and the number of tokens of each text."""
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

    end: the text of the special token after a document; `none` for no token; None for the tokenizer's own end of text.
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
    """The vocabulary size of a model for ids below `size`."""
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
    """tokenizer_config.json of a Hugging Face folder; empty where there is none."""
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
    """Open a file of tiktoken. Its name must be its encoding's, such as cl100k_base.tiktoken: tiktoken has the pattern for it."""
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
    # The encoding's own function would download the file. Use the file that is here.
    public.load_tiktoken_bpe = lambda *_, **__: load(str(path))
    try:
        made = tiktoken.Encoding(**make())
    except (ValueError, AssertionError) as error:
        raise Refused(f"--tokenizer {path}: this is not the file of the encoding {path.stem}: {error}") from None
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
    """The id of the token that ends a document."""
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
