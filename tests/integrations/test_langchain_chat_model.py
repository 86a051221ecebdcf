"""The chat model answers as KVBoost does, and tells LangChain what was reused."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from coinkv.errors import InputError
from coinkv.integrations.langchain import CoinKVChatModel
from coinkv.model.decode import Sampling
from fixtures.chat_model import BRIDGE, RIVER

MESSAGES = [SystemMessage(RIVER), HumanMessage("Who counted the sheep?")]
PROMPT = [
    {"role": "system", "content": RIVER},
    {"role": "user", "content": "Who counted the sheep?"},
]


@pytest.fixture
def chat(engine):
    return CoinKVChatModel(engine=engine, max_tokens=12)


def test_an_answer_is_what_the_engine_gives(chat, engine):
    wanted = engine.generate(PROMPT, 12)
    answer = chat.invoke(MESSAGES)
    assert answer.content == wanted.text
    assert answer.usage_metadata["input_tokens"] == wanted.prompt_tokens
    assert answer.usage_metadata["output_tokens"] == len(wanted.token_ids)
    assert answer.response_metadata["finish_reason"] == wanted.finish_reason
    assert answer.response_metadata["model_name"] == engine.backbone.name


def test_tokens_read_before_are_counted_as_read_from_the_cache_and_told_apart(chat):
    fresh, again = chat.invoke(MESSAGES), chat.invoke(MESSAGES)
    assert fresh.usage_metadata["input_token_details"]["cache_read"] == 0
    split = again.response_metadata["reuse"]
    assert sum(split.values()) == again.usage_metadata["input_tokens"]
    assert again.usage_metadata["input_token_details"]["cache_read"] == split["exact"] > 0
    assert again.content == fresh.content
    assert again.response_metadata["ttft_ms"] == pytest.approx(
        sum(again.response_metadata["stages_ms"].values())
    )


def test_moved_tokens_count_as_read_from_the_cache_too(chat):
    chat.invoke([HumanMessage(RIVER)])
    moved = chat.invoke([SystemMessage(BRIDGE), HumanMessage(RIVER)])
    split = moved.response_metadata["reuse"]
    assert split["moved"] > 0
    assert moved.usage_metadata["input_token_details"]["cache_read"] == (
        split["exact"] + split["moved"]
    )


def test_the_pieces_of_a_stream_are_the_answer_and_the_last_one_knows_everything(chat):
    whole = chat.invoke(MESSAGES)
    chunks = list(chat.stream(MESSAGES))
    assert len([chunk for chunk in chunks if chunk.content]) > 1
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == whole.content
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert joined.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]


def test_a_stream_that_nobody_reads_on_still_keeps_its_prompt(chat, engine):
    stream = chat.stream(MESSAGES)
    next(stream)
    stream.close()
    assert engine.plan(PROMPT).exact > 0


def test_bound_options_are_those_of_the_call(chat, engine):
    whole = engine.generate(PROMPT, 12).text
    stop = whole[3:5]
    assert chat.bind(stop=[stop]).invoke(MESSAGES).content == whole[: whole.find(stop)]
    assert chat.invoke(MESSAGES, stop=[stop]).content == whole[: whole.find(stop)]
    assert chat.bind(max_tokens=2).invoke(MESSAGES).usage_metadata["output_tokens"] == 2
    drawn = Sampling(max_tokens=12, temperature=1.5, top_p=0.9, seed=7)
    wanted = engine.generate(PROMPT, sampling=drawn).text
    assert chat.bind(temperature=1.5, top_p=0.9, seed=7).invoke(MESSAGES).content == wanted
    unread = chat.bind(reuse="none").invoke(MESSAGES)
    assert unread.usage_metadata["input_token_details"]["cache_read"] == 0


def test_options_of_the_model_hold_where_a_call_says_nothing(engine):
    whole = engine.generate(PROMPT, 12).text
    chat = CoinKVChatModel(engine=engine, max_tokens=12, stop=[whole[3:5]], temperature=0)
    assert chat.invoke(MESSAGES).content == whole[: whole.find(whole[3:5])]


def test_batches_and_asynchronous_calls_give_the_same_answers(chat):
    prompts = [[HumanMessage(text)] for text in (RIVER, BRIDGE, "Who counted the sheep?")]
    wanted = [chat.invoke(prompt, reuse="none").content for prompt in prompts]
    bound = chat.bind(reuse="none")
    assert [each.content for each in bound.batch(prompts)] == wanted

    async def asked():
        pieces = [chunk.content async for chunk in bound.astream(prompts[0])]
        return "".join(pieces), (await bound.ainvoke(prompts[1])).content

    assert asyncio.run(asked()) == tuple(wanted[:2])


def test_a_chain_of_prompt_model_and_parser_works(chat, engine):
    chain = ChatPromptTemplate([("system", RIVER), ("user", "{question}")]) | chat
    answer = (chain | StrOutputParser()).invoke({"question": "Who counted the sheep?"})
    assert answer == engine.generate(PROMPT, 12).text


def test_text_blocks_of_a_message_are_read_as_lines(chat, engine):
    blocks = [{"type": "text", "text": "Who counted"}, {"type": "text", "text": "the sheep?"}]
    wanted = engine.generate([{"role": "user", "content": "Who counted\nthe sheep?"}], 12)
    assert chat.invoke([HumanMessage(blocks)]).content == wanted.text


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]),
        AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}]),
        ToolMessage("seen", tool_call_id="1"),
    ],
)
def test_messages_that_are_not_plain_text_are_refused(chat, message):
    with pytest.raises(InputError, match="more than text"):
        chat.invoke([HumanMessage("Look."), message])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tools": []}, "tools"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": None}, "max_tokens"),
        ({"stop": "one text"}, "stop"),
        ({"reuse": "some"}, "reuse"),
        ({"repair": "duct tape"}, "duct tape"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_name(chat, given, told):
    with pytest.raises(InputError, match=told):
        chat.invoke(MESSAGES, **given)


def test_a_prompt_that_does_not_fit_is_refused(chat):
    with pytest.raises(InputError, match="prompt"):
        chat.invoke([HumanMessage("sheep " * 5000)])


def test_langchains_own_cache_tells_models_and_options_apart(chat, engine, monkeypatch):
    cache = InMemoryCache()
    first = CoinKVChatModel(engine=engine, max_tokens=12, cache=cache)
    shorter = CoinKVChatModel(engine=engine, max_tokens=2, cache=cache)
    whole = first.invoke(MESSAGES).content
    assert shorter.invoke(MESSAGES).content != whole
    monkeypatch.setattr(engine, "stream", None)
    assert first.invoke(MESSAGES).content == whole


def test_tokens_are_counted_by_the_models_own_tokenizer(chat, engine):
    assert chat.get_num_tokens(RIVER) == len(engine.backbone.tokenize(RIVER).ids)
