"""Chat completions in OpenAI's format, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from coinkv.rag.answer import Evidence
from coinkv.serve.api.annotations import annotations_of
from coinkv.serve.api.answers import Writer
from coinkv.serve.api.choices import Prompted, usage_of
from coinkv.serve.api.logprobs import chat_logprobs
from coinkv.serve.api.tokens import TokenTexts
from coinkv.serve.engines.questions import QuestionResult
from coinkv.serve.scheduler.events import Began, ChosenLogprob, Done, Event, Token


class ChatWriter(Writer):
    """Writes the answers to one prompt or question.

    Args:
        model: its name, as the client knows it.
        fingerprint: of the model behind it.
        request_id: of the request.
        choices: how many answers.
        index: name of the index that is asked; None for a prompt.
        texts: of the model's tokens, where their probabilities are wanted.
        usage: whether a stream ends with the counts of tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        fingerprint: str,
        request_id: str,
        choices: int,
        index: str | None,
        texts: TokenTexts | None,
        usage: bool,
    ) -> None:
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._request_id, self._index, self._texts = request_id, index, texts
        self._usage_wanted = usage
        self._prompted = Prompted(choices)

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of the answers so far."""
        return self._prompted.prompt_tokens + self._prompted.answer_tokens

    def note(self, number: int, event: Event) -> None:
        """Take in an event."""
        self._prompted.note(event)

    def chunks(self, number: int, event: Event) -> Iterator[dict[str, Any]]:
        """What a stream says of an event."""
        match event:
            case Began():
                yield from self._openings()
            case Token():
                yield from self._pieces(event)
            case Done() if self._index is not None:  # its citations are known only now
                for choice in range(len(self._prompted.choices)):
                    yield self._ending(choice)

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """The counts of tokens, if they are wanted."""
        if self._usage_wanted:
            yield self._chunk([], usage=usage_of([self._prompted]))

    def whole(self) -> dict[str, Any]:
        """The reply without a stream."""
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                {
                    "index": number,
                    "message": self._message(number),
                    "logprobs": self._logprobs(choice.logprobs),
                    "finish_reason": choice.finish_reason,
                }
                for number, choice in enumerate(self._prompted.choices)
            ],
            "usage": usage_of([self._prompted]),
            "coinkv": self._prompted.timing(self._request_id),
        }

    def _openings(self) -> Iterator[dict[str, Any]]:
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        if self._index is not None:
            delta["annotations"] = annotations_of(self._index, self._evidence)
        timing = self._prompted.timing(self._request_id)
        for number in range(len(self._prompted.choices)):
            yield self._chunk([self._piece(number, delta)], coinkv=timing)

    def _pieces(self, event: Token) -> Iterator[dict[str, Any]]:
        logprobs = self._logprobs(() if event.logprob is None else (event.logprob,))
        if event.text or event.logprob is not None:
            piece = self._piece(event.choice, {"content": event.text})
            yield self._chunk([{**piece, "logprobs": logprobs}])
        if event.finish_reason is not None and self._index is None:
            yield self._ending(event.choice)

    def _ending(self, number: int) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if self._index is not None:
            delta["annotations"] = self._annotations(number, first=len(self._evidence))
        reason = self._prompted.choices[number].finish_reason
        return self._chunk([{**self._piece(number, delta), "finish_reason": reason}])

    def _message(self, number: int) -> dict[str, Any]:
        text = self._prompted.choices[number].text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._index is not None:
            message["annotations"] = self._annotations(number)
        return message

    def _annotations(self, number: int, *, first: int = 0) -> list[dict[str, Any]]:
        done = self._prompted.done
        result = done.result if done is not None else None
        if self._index is None or not isinstance(result, QuestionResult):
            raise TypeError("only a question that has ended has citations")
        return annotations_of(self._index, self._evidence, result.citations[number], first=first)

    @property
    def _evidence(self) -> Sequence[Evidence]:
        evidence: Sequence[Evidence] = self._prompted.require_began().begun.facts["evidence"]
        return evidence

    def _logprobs(self, chosen: Sequence[ChosenLogprob]) -> dict[str, Any] | None:
        return None if self._texts is None else chat_logprobs(self._texts, chosen)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}

    def _piece(self, number: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
