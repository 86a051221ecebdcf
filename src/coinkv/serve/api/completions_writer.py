"""Text completions in OpenAI's format, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from coinkv.serve.api.answers import Writer
from coinkv.serve.api.choices import Prompted, usage_of
from coinkv.serve.api.logprobs import completion_logprobs
from coinkv.serve.api.tokens import Offsets, TokenTexts
from coinkv.serve.scheduler.events import Began, ChosenLogprob, Event, Token


class CompletionsWriter(Writer):
    """Writes the answers to one or more prompts; choices are numbered prompt by prompt.

    Args:
        model: its name, as the client knows it.
        fingerprint: of the model behind it.
        request_id: of the request.
        echoes: the text of each prompt where answers begin with it, else empty.
        choices: answers to each prompt.
        texts: of the model's tokens, where their probabilities are wanted.
        usage: whether a stream ends with the counts of tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        fingerprint: str,
        request_id: str,
        echoes: Sequence[str],
        choices: int,
        texts: TokenTexts | None,
        usage: bool,
    ) -> None:
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._request_id, self._echoes, self._texts = request_id, echoes, texts
        self._usage_wanted = usage
        self._prompts = [Prompted(choices) for _ in echoes]
        self._offsets = [Offsets(len(echo)) for echo in echoes for _ in range(choices)]

    @property
    def tokens(self) -> int:
        """Tokens of the prompts and of the answers so far."""
        return sum(each.prompt_tokens + each.answer_tokens for each in self._prompts)

    def note(self, number: int, event: Event) -> None:
        """Take in an event of a prompt."""
        self._prompts[number].note(event)

    def chunks(self, number: int, event: Event) -> Iterator[dict[str, Any]]:
        """What a stream says of an event."""
        prompted = self._prompts[number]
        first = number * len(prompted.choices)
        match event:
            case Began():
                timing = prompted.timing(self._request_id)
                for choice in range(first, first + len(prompted.choices)):
                    yield self._chunk(choice, self._echoes[number], coinkv=timing)
            case Token() if event.text or event.logprob is not None or event.finish_reason:
                choice = first + event.choice
                yield self._chunk(
                    choice,
                    event.text,
                    logprobs=self._logprobs(
                        () if event.logprob is None else (event.logprob,), self._offsets[choice]
                    ),
                    finish_reason=event.finish_reason,
                )

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """The counts of tokens, if they are wanted."""
        if self._usage_wanted:
            yield {**self._head, "choices": [], "usage": usage_of(self._prompts)}

    def whole(self) -> dict[str, Any]:
        """The reply without a stream."""
        timings = [each.timing(self._request_id) for each in self._prompts]
        answers = [
            (echo, choice)
            for echo, prompted in zip(self._echoes, self._prompts, strict=True)
            for choice in prompted.choices
        ]
        return {
            **self._head,
            "choices": [
                _choice(
                    number,
                    echo + choice.text,
                    self._logprobs(choice.logprobs, Offsets(len(echo))),
                    choice.finish_reason,
                )
                for number, (echo, choice) in enumerate(answers)
            ],
            "usage": usage_of(self._prompts),
            "coinkv": timings[0] if len(timings) == 1 else timings,
        }

    def _logprobs(self, chosen: Sequence[ChosenLogprob], offsets: Offsets) -> dict[str, Any] | None:
        return None if self._texts is None else completion_logprobs(self._texts, chosen, offsets)

    def _chunk(
        self,
        number: int,
        text: str,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        choice = _choice(number, text, logprobs, finish_reason)
        return {**self._head, "choices": [choice], **more}


def _choice(
    number: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {
        "index": number,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
