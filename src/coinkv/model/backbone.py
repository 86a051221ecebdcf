"""The backbone: a decoder language model, its tokenizer, and what KV reuse must know of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from coinkv.errors import ContextLengthError
from coinkv.kv.block import KVShape
from coinkv.kv.rope import Rope
from coinkv.model.turns import Turns
from coinkv.tokens import Tokenized


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as options name it: `float32`, `bfloat16`."""
    return str(dtype).removeprefix("torch.")


class AdaptedLayer(NamedTuple):
    """A layer of a model, and the same layer with an adapter around it.

    Attributes:
        siblings: the layers of the module it belongs to, by name.
        name: its own name among them.
        plain: the layer itself.
        adapted: the layer that computes `plain` and adds what the adapter changes.
    """

    siblings: dict[str, Any]
    name: str
    plain: Any
    adapted: Any


@dataclass(frozen=True, eq=False)
class Backbone:
    """A loaded model, ready for `fill`.

    Made by `coinkv.model.load.load`, which also measures `rope` and runs the gate.

    Attributes:
        name: the name or path it was loaded by.
        model: the Hugging Face causal language model, in evaluation mode.
        tokenizer: its Hugging Face tokenizer (fast).
        text_tokenizer: the same as a `tokenizers.Tokenizer` that reads special tokens written in a
            text as plain text: documents and questions are data.
        shape: layers, KV heads, head size.
        rope: the rotation measured on the model.
        context_length: the most tokens a sequence may have (positions 0 to context_length - 1).
        fingerprint: hex digest of all that KV depends on.
        end_token_ids: tokens that end an answer.
        cache_argument: the name under which this model's forward takes its cache.
        keeps_logits: the forward takes `logits_to_keep`.
        threads: CPU threads of a forward pass, as set in torch when the model was loaded.
        turns: who may make the next forward pass: two at once would fight for the same cores.
        pass_tokens: most tokens of a forward pass; None: no limit. Smaller passes let others take
            their turn in between, at a small price.
        adapter: the one of `adapters` its forward passes run with; None runs the model as it is.
        adapters: what was loaded by `coinkv.model.adapter.adapted`, shared by all views of a model.
    """

    name: str
    model: Any
    tokenizer: Any
    text_tokenizer: Any
    shape: KVShape
    rope: Rope
    context_length: int
    fingerprint: str
    end_token_ids: frozenset[int]
    cache_argument: str
    keeps_logits: bool
    threads: int = field(default_factory=torch.get_num_threads)
    turns: Turns = field(default_factory=Turns)
    pass_tokens: int | None = None
    adapter: str | None = None
    adapters: dict[str, tuple[AdaptedLayer, ...]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in, and of the KV it makes."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    def tokenize(self, text: str) -> Tokenized:
        """Token ids of a text, without special tokens, each with its character range.

        Special tokens spelled out in the text ("<|im_end|>") become ordinary tokens.
        """
        encoding = self.text_tokenizer.encode(text, add_special_tokens=False)
        return Tokenized(tuple(encoding.ids), tuple(encoding.offsets))

    def detokenize(self, token_ids: list[int]) -> str:
        """The text of tokens, special tokens left out."""
        text: str = self.text_tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    @contextmanager
    def computing(self, tokens: int = 1) -> Iterator[None]:
        """Around every forward pass: alone on the cores, on all threads, without gradient.

        An adapter's layers stand in the model only inside, so every other view of the model
        computes with the very layers that were loaded.

        Args:
            tokens: how many the pass computes.
        """
        layers = self.adapters[self.adapter] if self.adapter is not None else ()
        with self.turns.turn(tokens), torch.no_grad():
            # a Python thread that began while another computed on one thread would stay with one
            if torch.get_num_threads() != self.threads:
                torch.set_num_threads(self.threads)
            try:
                for layer in layers:
                    layer.siblings[layer.name] = layer.adapted
                yield
            finally:
                for layer in layers:
                    layer.siblings[layer.name] = layer.plain

    def require_room(
        self, tokens: int, what: str, *, hint: str = "shorten it, or ask for fewer pieces"
    ) -> None:
        """Raise ContextLengthError when `tokens` exceed the context window."""
        if tokens > self.context_length:
            raise ContextLengthError(
                f"{what} needs {tokens} tokens, the context window of {self.name} holds "
                f"{self.context_length}",
                hint=hint,
            )

    def synchronize(self) -> None:
        """Wait until the device has finished what was queued (for honest timing)."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
