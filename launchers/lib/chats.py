"""Chats as tokens: a chat template formats the messages of .jsonl files, and a mask marks the assistant's tokens.

A line is {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}; other keys of a message reach the
template. The template is the tokenizer's own (a Hugging Face folder), a file, or one of NAMED. It runs in jinja2's sandbox, with
the names that transformers gives to templates, except strftime_now: a chat must give the same tokens on another day.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import vocabulary
from .documents import Bad, records
from .faults import Refused, imported

Message = dict[str, Any]
# Formats that several families of models share, and one for bytes.
NAMED = {
    "chatml": (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
        "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "bytes": (
        "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|endturn|>{% endfor %}"
        "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
    ),
}
TURNS = ("every", "last")


class BadChat(Exception):  # noqa: N818 - named like Refused, after the chat's state
    """A chat that cannot be trained on, with the reason."""


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """A sequence to train on. mask: 1 for each token that the loss counts, else 0."""

    tokens: list[int]
    mask: list[int]


class ChatLayout:
    """A tokenizer with a chat template: messages -> tokens."""

    def __init__(self, tokenizer: vocabulary.Vocabulary, template: str | None) -> None:
        """template: a name of NAMED, a file, or None for the tokenizer's own. Refused where it cannot be used."""
        self.tokenizer = tokenizer
        self.name, self.source = _template(tokenizer, template)
        own = vocabulary.configuration(tokenizer.files)
        special = {key: _text(value) for key, value in own.items() if key.endswith("_token") and value is not None}
        if template == "llama3":
            special.setdefault("bos_token", "<|begin_of_text|>")
        self._special = special
        self._compiled = _compiled(self.name, self.source)
        words = sorted(tokenizer.special, key=len, reverse=True)
        self._words = re.compile("|".join(map(re.escape, words)) or r"(?!)")
        if template in NAMED:
            wanted = set(re.findall(r"<\|\w+\|>", self.source)) - tokenizer.special.keys()
            if wanted:
                raise Refused(
                    f"--chat-template {template}: the tokenizer has no special token {', '.join(sorted(wanted))}",
                    hint="a tokenizer that has them, or another template",
                )

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides the tokens of a chat."""
        return hashlib.sha256(json.dumps([self.tokenizer.digest, self.source, self._special]).encode()).hexdigest()

    def text(self, messages: list[Message], *, ask: bool) -> str:
        """Write the chat by the template, with `ask` up to the start of the assistant's answer. BadChat if the template fails."""
        try:
            made: str = self._compiled(messages=messages, add_generation_prompt=ask, **self._special)
        except Exception as error:  # noqa: BLE001 - an expression in a template can raise anything
            raise BadChat(f"the chat template {self.name} cannot format it: {error}") from None
        return made

    def prompt(self, messages: list[Message]) -> list[int]:
        """The tokens before the assistant's answer."""
        self._check(messages)
        return self.tokenizer.chat(self.text(messages, ask=True))[0]

    def row(self, messages: list[Message], turns: str = "every") -> TokenRow:
        """The whole chat. The mask marks the assistant's turns, each with its end token; with turns "last" only the last turn."""
        self._check(messages)
        whole, answers = self.text(messages, ask=False), self._answers(messages, turns)
        ids, starts = self.tokenizer.chat(whole)
        mask, waiting = [], list(reversed(answers))
        for start in starts:
            while waiting and start >= waiting[-1][1]:
                waiting.pop()
            mask.append(int(bool(waiting) and start >= waiting[-1][0]))
        if not any(mask):
            raise BadChat("the assistant's turns have no token")
        return TokenRow(tokens=ids, mask=mask)

    def end(self) -> int:
        """The token that ends the assistant's turn, at which sampling stops. Refused where the template writes none."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        ((first, last),) = self._answers(messages, "every")
        found = self._words.findall(self.text(messages, ask=False)[first:last])
        if not found:
            raise Refused(f"the chat template {self.name} ends the assistant's turn with no special token")
        return self.tokenizer.special[found[-1]]

    def _answers(self, messages: list[Message], turns: str) -> list[tuple[int, int]]:
        """The ranges [first, last) of the assistant's turns, in characters of the chat's text."""
        whole, found = self.text(messages, ask=False), []
        places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        if not places:
            raise BadChat("it has no message of the assistant")
        for number in places if turns == "every" else places[-1:]:
            before, after = self.text(messages[:number], ask=True), self.text(messages[: number + 1], ask=False)
            if not (after.startswith(before) and whole.startswith(after)):
                raise BadChat(
                    f"the chat template {self.name} writes message {number + 1} differently once others follow: --turns last "
                    "counts only the last answer"
                )
            last = len(after)
            # Text after the token that ends the turn, such as a line break, is never sampled.
            for match in self._words.finditer(whole, len(before), len(after)):
                if not whole[match.end() : len(after)].strip():
                    last = match.end()
                    break
            found.append((len(before), last))
        return found

    def _check(self, messages: Any) -> None:
        if not isinstance(messages, list) or not messages:
            raise BadChat("no list of messages under 'messages'")
        for number, message in enumerate(messages, 1):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise BadChat(f"message {number} has no role")
            if not isinstance(message.get("content"), str):
                raise BadChat(f"message {number} has no text under 'content'")
            if not message["content"].isascii() and re.search("[\ud800-\udfff]", message["content"]):
                raise BadChat(f"message {number} has half a surrogate pair, which is not text")
            if found := self._words.search(message["content"]):
                raise BadChat(
                    f"message {number} has the tokenizer's {found[0]} in its text, which would end or begin a turn"
                )


def each(source: Path, layout: ChatLayout, turns: str) -> Iterator[tuple[str, bytes, TokenRow | BadChat]]:
    """For each line of a file, or of a folder's .jsonl files: its place, its messages as bytes, and its row or what is wrong."""
    for where, record in records(source):
        if isinstance(record, Bad):
            yield where, b"", BadChat(record.why)
            continue
        messages = record.get("messages")
        content = json.dumps(messages, sort_keys=True).encode()
        try:
            yield where, content, layout.row(messages, turns)
        except BadChat as error:
            yield where, content, error


def tokenizer(which: str | None, model: Path | None) -> vocabulary.Vocabulary:
    """The tokenizer of the options: --tokenizer, else the one of a Hugging Face --model, else bytes."""
    if which is None and model is not None and (model / "tokenizer.json").is_file():
        which = str(model)
    return vocabulary.opened(which or vocabulary.BYTES)


def _text(token: Any) -> str:
    """The text of a special token in tokenizer_config.json, where it is a string or a table with one."""
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _template(tokenizer: vocabulary.Vocabulary, which: str | None) -> tuple[str, str]:
    """The template's name for messages, and its text."""
    if which in NAMED:
        return which, NAMED[which]
    if which is not None:
        try:
            return which, Path(which).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise Refused(
                f"--chat-template {which}: neither one of {', '.join(NAMED)} nor a file that can be read: {error}"
            ) from None
    if tokenizer.name == vocabulary.BYTES:
        return "bytes", NAMED["bytes"]
    if "chat_template.jinja" in tokenizer.files:
        return "chat_template.jinja", tokenizer.files["chat_template.jinja"].decode(errors="replace")
    own = vocabulary.configuration(tokenizer.files).get("chat_template")
    if isinstance(own, list):  # several named templates, as transformers writes them for tool use
        own = next((one.get("template") for one in own if isinstance(one, dict) and one.get("name") == "default"), None)
    if not isinstance(own, str):
        raise Refused(
            f"--tokenizer {tokenizer.name}: it has no chat template", hint=f"--chat-template {next(iter(NAMED))}"
        )
    return "chat_template of tokenizer_config.json", own


def _compiled(name: str, source: str) -> Callable[..., str]:
    """A function that renders the template. The template is foreign, so the sandbox keeps it from the program's own objects."""
    jinja2 = imported("jinja2", "a chat template")
    sandbox = imported("jinja2.sandbox", "a chat template")
    extension = imported("jinja2.ext", "a chat template")

    class Generation(extension.Extension):  # type: ignore[misc, name-defined]
        """Supports `generation` blocks, in which some templates write the assistant's turns. Only their content is written."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raised(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raised
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False, **how})
    try:
        render: Callable[..., str] = environment.from_string(source).render
    except jinja2.TemplateSyntaxError as error:
        raise Refused(f"the chat template {name}, line {error.lineno}: {error.message}") from None
    return render
