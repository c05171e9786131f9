"""Text to token ids and back: a checkpoint's tokenizer, its chat template, and what separates text from control tokens.

A tokenizer is read from a Hugging Face folder once, through the class that transformers picks for it; another release
may pick another class, and so other ids. ``save`` freezes what was picked; ``load`` needs the tokenizers library alone.

There are two renderings of a request's text:

``reference``
    What the reference implementations do: text that spells an added token, such as ``<|im_end|>``, becomes that token
    wherever it stands, so a state can end its own turn and speak in the assistant's name.
``escape``
    Text of the request never becomes a control token. The model still reads every character, as ordinary text. For
    text that spells no control token the ids equal ``reference``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tokenizers
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from sysone_jax.errors import CheckpointError, InputError
from sysone_jax.questions import JSON, check_json, check_text
from sysone_jax.split_patterns import Pattern, split_by

Rendering = Literal["reference", "escape"]

FORMAT = 1
"""Of ``chat.json``. A reader refuses any other number."""

RESERVED = frozenset(
    # what rendering a chat takes beside the template's own variables: a request may set none of it
    "self messages conversation conversations tools documents chat_template add_generation_prompt "
    "continue_final_message tokenize tokenizer_kwargs padding truncation max_length return_tensors return_dict "
    "return_assistant_tokens_mask sanitize_control_tokens "
    # what templates call
    "range dict lipsum cycler joiner namespace raise_exception strftime_now".split()
)

STAND_IN = "Is it so?\n\n1: yes"  # in the place of a request's text, to see what a template writes by itself


_Turns = tuple[str, ...]  # (user's,) or (system's, user's)


class MediaCount(NamedTuple):
    """Images and videos that a user's turn opens with, in this order."""

    images: int = 0
    videos: int = 0


NO_MEDIA = MediaCount()


class _Outline(NamedTuple):
    """A prompt with a stand-in for each turn: what the template writes by itself."""

    text: str
    ids: list[int]


class Tokenizer:
    """One checkpoint's tokenizer and chat template. Safe to use from several threads.

    Args:
        backend: the tokenizer; its truncation and padding are switched off.
        chat_template: Jinja source, or None for a model that has none.
        special_tokens: what templates see, such as ``{"bos_token": "<s>"}``.

    Attributes:
        added_ids: ids of all added tokens, special or not.
        chat_template: as given.
        special_tokens: as given.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, chat_template: str | None, special_tokens: Mapping[str, str]
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens)
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)

        # The same model and pre-tokenizer without added tokens: to it, "<|im_end|>" is ten characters.
        plain = tokenizers.Tokenizer(backend.model)
        if backend.normalizer is not None:
            plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain.pre_tokenizer = backend.pre_tokenizer
        # Some tokenizers add whole words, such as Gemma's runs of newlines. A word whose ordinary encoding is the very
        # same token controls nothing, so it stays.
        words = {
            token: word
            for token, word in added.items()
            if not word.special and plain.encode(word.content, add_special_tokens=False).ids == [token]
        }
        if words:
            plain.add_tokens(list(words.values()))
        self._plain = plain
        self._controls = {token: control.content for token, control in added.items() if token not in words}
        self._spellings = frozenset(self._controls.values())
        self._lengths = sorted({len(spelling) for spelling in self._spellings})
        self._firsts = sorted({spelling[0] for spelling in self._spellings if spelling})

    @classmethod
    def from_pretrained(cls, folder: Path, pattern: Pattern | None = None) -> Tokenizer:
        """Read a Hugging Face folder through ``transformers.AutoTokenizer``: local files only, no code from the folder.

        Args:
            folder: where it lies.
            pattern: what text is split by; None is what transformers picks.

        Raises:
            CheckpointError: there is no tokenizer here, or none with a fast (``tokenizer.json``) form; or a pattern is
                asked for and the tokenizer splits by neither.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such folder; give one that holds a tokenizer.json")
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # whatever a damaged file makes transformers raise, it is this folder's fault
            raise CheckpointError(
                f"{folder}: transformers cannot read this tokenizer, or the config.json beside it "
                f"({_one_line(error)}); the folder needs a tokenizer.json and a tokenizer_config.json"
            ) from error
        backend = getattr(loaded, "backend_tokenizer", None)
        if not isinstance(backend, tokenizers.Tokenizer):
            raise CheckpointError(
                f"{folder}: {type(loaded).__name__} has no fast form; save the tokenizer with a tokenizer.json"
            )
        if not backend.encode("a", add_special_tokens=False).ids:  # transformers makes one up from a config alone
            raise CheckpointError(f"{folder}: the tokenizer has no vocabulary; the folder needs its tokenizer.json")
        if loaded.split_special_tokens:
            raise CheckpointError(
                f"{folder}: split_special_tokens makes plain text of the chat template's own tokens; set it to false "
                "in tokenizer_config.json"
            )
        if pattern is not None:
            backend = split_by(pattern, backend, folder)
        template = loaded.chat_template
        if isinstance(template, Mapping):  # several templates by name
            template = template.get("default")
        return cls(backend, template, loaded.special_tokens_map)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read what ``save`` wrote.

        Raises:
            CheckpointError: a file is missing, damaged or of another format.
        """
        chat_file, tokenizer_file = Path(folder) / "chat.json", Path(folder) / "tokenizer.json"
        try:
            chat = json.loads(chat_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{chat_file}: cannot be read ({_one_line(error)}); convert the model again"
            ) from error
        if not isinstance(chat, dict) or chat.get("format") != FORMAT:
            raise CheckpointError(f"{chat_file}: this version reads format {FORMAT}; convert the model again")
        if chat.keys() != {"format", "chat_template", "special_tokens"}:
            raise CheckpointError(f"{chat_file}: damaged; convert the model again")
        try:
            backend = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{tokenizer_file}: {_one_line(error)}; convert the model again") from error
        return cls(backend, chat["chat_template"], chat["special_tokens"])

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and ``chat.json`` into ``folder``, which is made if it is not there."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        chat = {"format": FORMAT, "chat_template": self.chat_template, "special_tokens": self.special_tokens}
        (folder / "tokenizer.json").write_text(self._backend.to_str(), encoding="utf-8")
        (folder / "chat.json").write_text(json.dumps(chat, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def encode(self, text: str, rendering: Rendering = "reference") -> list[int]:
        """Token ids of ``text`` alone: no BOS, no EOS. Under ``escape`` none of them is a control token.

        Raises:
            InputError: a lone surrogate; or, under ``escape``, a control token that ordinary text cannot avoid.
        """
        check_text(text, "text")
        ids = self._backend.encode(text, add_special_tokens=False).ids
        if _escapes(rendering) and self._controls_in(ids):
            ids = self._plain.encode(text, add_special_tokens=False).ids
            self._check_controls(ids, [])
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, special tokens included."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def chat(
        self,
        content: str,
        *,
        system: str | None = None,
        template_kwargs: Mapping[str, JSON] | None = None,
        rendering: Rendering = "reference",
    ) -> list[int]:
        """Token ids of a chat prompt: a system turn if given, a user turn, and the opening of the reply.

        Args:
            content: the user's turn.
            system: the system turn; None for none, though a template may then write its own.
            template_kwargs: variables for the template. Thinking is off unless ``enable_thinking`` says otherwise.
            rendering: what becomes of control tokens that ``content`` or ``system`` spell.

        Raises:
            CheckpointError: there is no template, or it is broken.
            InputError: the template refuses the messages, an option is not a template variable, or, under ``escape``,
                the text cannot be kept apart from the template's control tokens.
        """
        return self.chats([content], system=system, template_kwargs=template_kwargs, rendering=rendering)[0]

    def chats(
        self,
        contents: Sequence[str],
        *,
        system: str | None = None,
        template_kwargs: Mapping[str, JSON] | None = None,
        rendering: Rendering = "reference",
        media: MediaCount = NO_MEDIA,
    ) -> list[list[int]]:
        """``chat`` of several user turns at once, with the tokenizing spread over the processor's cores.

        Each turn opens with the template's placeholders of ``media``.
        """
        options = self._template_options(template_kwargs)
        chats = [(content,) if system is None else (system, content) for content in contents]
        texts = [self._render(turns, options, media) for turns in chats]
        rows = [row.ids for row in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        if not _escapes(rendering):
            return rows
        self._check_option_text(options)
        outlines: dict[_Turns, _Outline] = {}  # nearly always one
        for index, turns in enumerate(chats):
            stand_ins = tuple(_stand_in(turn) for turn in turns)
            if stand_ins not in outlines:
                text = self._render(stand_ins, options, media)
                outlines[stand_ins] = _Outline(text, self._backend.encode(text, add_special_tokens=False).ids)
            outline = outlines[stand_ins]
            if self._controls_in(rows[index]) != self._controls_in(outline.ids):
                rows[index] = self._escaped(turns, options, media, texts[index], rows[index], outline)
        return rows

    def conversation(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, JSON] | None = None,
    ) -> list[int]:
        """Token ids of a whole chat, of any roles, as the reference renders it.

        Args:
            messages: ``{"role", "content"}`` in turn.
            add_generation_prompt: whether it ends with the opening of a reply.
            template_kwargs: as of ``chat``.

        Raises:
            CheckpointError, InputError: as ``chat``.
        """
        text = self._render_messages(messages, self._template_options(template_kwargs), add_generation_prompt)
        return self._backend.encode(text, add_special_tokens=False).ids

    # ---------------------------------------------------------------- chat templates

    def check_template(self) -> None:
        """CheckpointError when there is a chat template and it is no Jinja, or does what a template may not."""
        if self.chat_template is None:
            return
        try:
            self._render((STAND_IN,), {"enable_thinking": False}, NO_MEDIA)
        except InputError:  # by a template that runs, and wants other messages
            return

    def _template_options(self, given: Mapping[str, JSON] | None) -> dict[str, JSON]:
        if given is None:
            return {"enable_thinking": False}
        if not isinstance(given, Mapping):
            raise InputError(
                "chat_template_kwargs: must be an object that maps template variables to values",
                kind="type",
                field="chat_template_kwargs",
            )
        options = dict(given)
        check_json(options, "chat_template_kwargs")
        for name in options:
            if name in RESERVED or name in self.special_tokens:
                raise InputError(
                    f"chat_template_kwargs.{name}: not an option of a chat template that a request may set; leave it "
                    "out",
                    kind="unknown_field",
                    field=f"chat_template_kwargs.{name}",
                )
        return {"enable_thinking": False, **options}

    def _render(self, turns: _Turns, options: Mapping[str, JSON], media: MediaCount) -> str:
        """The prompt as text."""
        roles = ("system", "user")[-len(turns) :]
        messages: list[dict[str, Any]] = [
            {"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)
        ]
        if media != NO_MEDIA:  # as parts only where there are any: not every template takes parts
            parts = [{"type": "image"}] * media.images + [{"type": "video"}] * media.videos
            messages[-1]["content"] = [*parts, {"type": "text", "text": turns[-1]}]
        return self._render_messages(messages, options, add_generation_prompt=True)

    def _render_messages(
        self, messages: Sequence[Mapping[str, str]], options: Mapping[str, JSON], add_generation_prompt: bool
    ) -> str:
        """The chat as text, in the sandboxed environment and with the helpers that transformers gives templates."""
        if self.chat_template is None:
            raise CheckpointError(
                "this model's tokenizer has no chat template; add a chat_template.jinja to its folder"
            )
        from transformers.utils.chat_template_utils import render_jinja_template  # imports neither torch nor a model

        try:
            rendered, _ = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                chat_template=self.chat_template,
                add_generation_prompt=add_generation_prompt,
                **{**self.special_tokens, **options},
            )
        except (TemplateSyntaxError, SecurityError) as error:
            raise CheckpointError(f"this model's chat template is broken: {_one_line(error)}") from error
        except Exception as error:  # templates are programs: they refuse by any exception, on messages and on options
            raise InputError(f"this model's chat template refuses the request: {_one_line(error)}") from error
        check_text(rendered[0], "text")
        return rendered[0]

    # ---------------------------------------------------------------- escaping

    def _controls_in(self, ids: Iterable[int]) -> list[int]:
        return [token for token in ids if token in self._controls]

    def _check_controls(self, ids: Iterable[int], expected: Sequence[int]) -> None:
        """Refuse ids whose control tokens are not the expected ones."""
        for found, wanted in zip_longest(self._controls_in(ids), expected):
            if found != wanted:
                raise _inseparable(self._controls[wanted if found is None else found])

    def _check_option_text(self, options: Mapping[str, JSON]) -> None:
        # Their text may stand anywhere in the prompt, so it may not even begin a control token.
        for name, value in options.items():
            for text in _texts(value):
                for first in self._firsts:
                    if first in text:
                        raise InputError(
                            f"chat_template_kwargs.{name}: {first!r} begins a control token of this model; leave it "
                            'out, or ask for rendering="reference"',
                            field=f"chat_template_kwargs.{name}",
                        )

    def _escaped(
        self,
        turns: _Turns,
        options: Mapping[str, JSON],
        media: MediaCount,
        text: str,
        reference: list[int],
        outline: _Outline,
    ) -> list[int]:
        """The prompt's ids with the template's own control tokens and no others.

        In the request's text the first character of whatever spells a control token is covered by a character of no
        meaning. The prompt is rendered so and tokenized once, only to see where the template's own control tokens lie.
        What lies between them is uncovered and encoded as plain text.

        Args:
            turns: the request's text.
            options: for the template.
            media: what the user's turn opens with.
            text: the prompt.
            reference: its ids under the other rendering.
            outline: the prompt with a stand-in for each turn.
        """
        taken = set().union(*turns, self.chat_template or "")
        spare = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in taken)  # private use
        covers = dict(zip(self._firsts, spare, strict=False))
        uncover = {ord(cover): first for first, cover in covers.items()}
        covered = self._render(tuple(self._cover(turn, covers) for turn in turns), options, media)
        ids = self._between_controls(covered, uncover)
        expected = self._controls_in(outline.ids)
        self._check_controls(ids, expected)

        # A template that looks into the text, or a tokenizer that treats a text's beginning apart, cannot be escaped.
        if covered.translate(uncover) != text or self._between_controls(outline.text, {}) != outline.ids:
            self._check_controls(reference, expected)  # they differ, so this names the token
        return ids

    def _cover(self, text: str, covers: Mapping[str, str]) -> str:
        return "".join(
            covers[character] if character in covers and self._spells_control(text, at) else character
            for at, character in enumerate(text)
        )

    def _spells_control(self, text: str, at: int) -> bool:
        return any(text[at : at + length] in self._spellings for length in self._lengths)

    def _between_controls(self, text: str, uncover: Mapping[int, str]) -> list[int]:
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids: list[int] = []
        at = 0
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._controls:
                ids += self._plain.encode(text[at:start].translate(uncover), add_special_tokens=False).ids
                ids.append(token)
                at = end
        return ids + self._plain.encode(text[at:].translate(uncover), add_special_tokens=False).ids


def json_text(value: JSON, field: str, *, compact: bool = False) -> str:
    """A value as prompts write it: text as it is, anything else as JSON with every character as it is.

    Numbers are Python's (``1e-05``), NaN is ``NaN``.

    Args:
        value: text or any JSON.
        field: its dotted path in the request, for errors.
        compact: no spaces and sorted keys, as Clef's files write it; otherwise ``", "``, ``": "`` and the given order,
            as vLLM writes it.

    Raises:
        InputError: the value is not JSON, or holds a lone surrogate.
    """
    check_json(value, field)
    if isinstance(value, str):
        return value
    if compact:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return json.dumps(value, ensure_ascii=False)


def _escapes(rendering: str) -> bool:
    if rendering not in ("reference", "escape"):
        raise InputError(f'rendering: must be "reference" or "escape", not {rendering!r}', field="rendering")
    return rendering == "escape"


def _stand_in(text: str) -> str:
    return STAND_IN if text.strip() else text  # templates may leave out an empty turn


def _texts(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _inseparable(token: str) -> InputError:
    return InputError(
        f"the request's text spells the control token {token!r}, which this model cannot read as ordinary text; remove "
        'it, or ask for rendering="reference"'
    )


def _one_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line if len(line) <= 200 else f"{line[:200]}..."
