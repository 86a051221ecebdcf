"""What a request's answers have come to so far, as every format of a reply needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coinkv.serve.scheduler.events import Began, ChosenLogprob, Done, Event, Token


@dataclass
class Choice:
    """One answer: its text, the probabilities of its tokens, and why it ended."""

    text: str = ""
    logprobs: list[ChosenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


class Prompted:
    """One prompt and its answers.

    Args:
        choices: how many answers.
    """

    def __init__(self, choices: int) -> None:
        self.choices = [Choice() for _ in range(choices)]
        self.answer_tokens = 0
        self.began: Began | None = None
        self.done: Done | None = None

    def note(self, event: Event) -> None:
        """Take an event in."""
        match event:
            case Began():
                self.began = event
            case Done():
                self.done = event
            case Token():
                choice = self.choices[event.choice]
                choice.text += event.text
                choice.finish_reason = event.finish_reason
                if event.logprob is not None:
                    choice.logprobs.append(event.logprob)
                self.answer_tokens += event.token_id is not None

    def require_began(self) -> Began:
        """The event by which the prompt was computed."""
        if self.began is None:
            raise TypeError("a ticket tells of its prompt before anything else")
        return self.began

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 while it is not computed."""
        return self.began.begun.prompt_tokens if self.began else 0

    @property
    def cached_tokens(self) -> int:
        """Of these, tokens whose KV was reused."""
        return self.began.begun.cached_tokens if self.began else 0

    def timing(self, request_id: str) -> dict[str, Any]:
        """The reply's `coinkv` object; with `decode_ms` once the answers have ended."""
        began = self.require_began()
        begun, queue_seconds = began.begun, began.queue_seconds
        stages = {name: _ms(seconds) for name, seconds in begun.stages_seconds.items()}
        told: dict[str, Any] = {
            "request_id": request_id,
            "ttft_ms": _ms(queue_seconds + begun.ttft_seconds),
            "queue_ms": _ms(queue_seconds),
            "stages_ms": stages,
            "prompt_tokens": begun.prompt_tokens,
            "cached_tokens": begun.cached_tokens,
        }
        if self.done is not None:
            told["decode_ms"] = _ms(self.done.decode_seconds)
        return told | {name: fact for name, fact in begun.facts.items() if name != "evidence"}


def usage_of(prompted: Sequence[Prompted]) -> dict[str, Any]:
    """OpenAI's `usage` of all prompts together."""
    prompt_tokens = sum(each.prompt_tokens for each in prompted)
    answer_tokens = sum(each.answer_tokens for each in prompted)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer_tokens,
        "total_tokens": prompt_tokens + answer_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in prompted)},
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
