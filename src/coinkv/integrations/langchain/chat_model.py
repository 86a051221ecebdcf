"""The chat model: messages in, text out, computed by KVBoost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel, generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import Field, InstanceOf, ValidationError

from coinkv.boost.engine import KVBoost
from coinkv.boost.plan import Reuse
from coinkv.errors import InputError
from coinkv.integrations.langchain.messages import ending, prompt_of
from coinkv.model.decode import Sampling

_OPTIONS = ("max_tokens", "temperature", "top_p", "seed", "stop", "reuse", "repair")


class CoinKVChatModel(BaseChatModel):
    """A chat model that reuses the KV of all it has read before: `coinkv.KVBoost`.

    For texts only, without tools; greedy by default. Options are those of `coinkv.Sampling` and of
    `KVBoost.generate`; they may also be bound, or given with a call. `usage_metadata` and
    `response_metadata` say what was reused (`coinkv.integrations.langchain.messages.ending`).

    Raises:
        InputError: when asked: the prompt does not fit, an option is unknown or out of range, or a
            message is no text.
    """

    engine: InstanceOf[KVBoost] = Field(repr=False)
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    reuse: Reuse = "all"
    repair: str | None = None

    @property
    def _llm_type(self) -> str:
        return "coinkv"

    @property
    def model_name(self) -> str:
        """The backbone's name, for traces."""
        return self.engine.backbone.name

    @property
    def _identifying_params(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in _OPTIONS}
        return {"model": self.engine.backbone.fingerprint, **options}

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text, by the model's own tokenizer (LangChain would download GPT-2's)."""
        return list(self.engine.backbone.tokenize(text).ids)

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return generate_from_stream(self._stream(*args, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        asked = self._with(kwargs if stop is None else {**kwargs, "stop": stop})
        sampling = Sampling(
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            stop=asked.stop,
            seed=asked.seed,
        )
        prompt = prompt_of(messages)
        stream = self.engine.stream(
            prompt, sampling=sampling, reuse=asked.reuse, repair=asked.repair
        )
        with closing(stream):  # also when nobody reads on: the KV made so far is kept
            for piece in stream:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
            yield ChatGenerationChunk(message=ending(stream.result, self.model_name))

    def _with(self, given: dict[str, Any]) -> CoinKVChatModel:
        for name in given.keys() - _OPTIONS:
            raise InputError(f"no option {name!r}", hint=f"there are {', '.join(_OPTIONS)}")
        try:
            return self.model_validate({**self.__dict__, **given})
        except ValidationError as error:
            fault = error.errors()[0]
            raise InputError(fault["msg"], where=str(fault["loc"][0])) from error
