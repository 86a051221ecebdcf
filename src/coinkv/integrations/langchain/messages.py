"""LangChain's messages on the way into KVBoost, and what a result becomes on the way out."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata

from coinkv.boost.result import BoostResult
from coinkv.errors import InputError
from coinkv.model.chat import Message


def prompt_of(messages: Sequence[BaseMessage]) -> list[Message]:
    """Messages with `role` and `content`; text blocks of a message are joined by line breaks.

    Raises:
        InputError: a message holds anything but text, or calls a tool.
    """
    prompt: list[Message] = []
    for message in convert_to_openai_messages(messages):
        if not isinstance(message["content"], str) or message.keys() & {
            "tool_calls",
            "tool_call_id",
        }:
            raise InputError(
                f"a {message['role']} message holds more than text",
                hint="leave out images, files and tool calls",
            )
        prompt.append({"role": message["role"], "content": message["content"]})
    return prompt


def ending(result: BoostResult, model_name: str) -> AIMessageChunk:
    """The last chunk of an answer: no text, but all that is known of it.

    `usage_metadata` counts the prompt's tokens whose KV was reused, moved or not, as
    `input_token_details.cache_read`. `response_metadata` has the `reuse` split (exact, moved,
    repaired, computed), `repair`, `ttft_ms`, `stages_ms`, `decode_ms` and `finish_reason`.
    """
    given = len(result.token_ids)
    facts = result.to_dict()
    told = ("finish_reason", "reuse", "repair", "ttft_ms", "stages_ms", "decode_ms")
    return AIMessageChunk(
        content="",
        usage_metadata=UsageMetadata(
            input_tokens=result.prompt_tokens,
            output_tokens=given,
            total_tokens=result.prompt_tokens + given,
            input_token_details=InputTokenDetails(
                cache_read=result.reuse.exact + result.reuse.moved
            ),
        ),
        response_metadata={"model_name": model_name, **{name: facts[name] for name in told}},
    )
