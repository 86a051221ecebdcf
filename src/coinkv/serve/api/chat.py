"""Chat completions: any conversation with the backbone, or questions to an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from coinkv.errors import InputError
from coinkv.methods.base import Method
from coinkv.methods.options import is_bounded
from coinkv.methods.registry import method_class, method_named, option_types
from coinkv.serve.api.answers import answer
from coinkv.serve.api.bodies import JsonRoute
from coinkv.serve.api.chat_writer import ChatWriter
from coinkv.serve.api.declared import reply_declared
from coinkv.serve.api.generating import deadline_of, only_for, samplings_of
from coinkv.serve.api.schemas.chat import ChatCompletion, ChatCompletionChunk, ChatRequest
from coinkv.serve.api.tickets import Tickets
from coinkv.serve.api.tokens import token_texts
from coinkv.serve.engines.models import ModelInfo
from coinkv.serve.engines.questions import QuestionOptions
from coinkv.serve.scheduler.task import Task
from coinkv.serve.security.access import client_of, namespace_of
from coinkv.serve.service import Service
from coinkv.serve.settings import ServeSettings

router = APIRouter(prefix="/v1", tags=["answers"], route_class=JsonRoute)

_OF_PROMPTS = ("reuse", "repair")
_OF_QUESTIONS = (
    "method",
    "options",
    "k_chunks",
    "k_nuggets",
    "answer_lead",
    "first_line",
    "condense",
)


@router.post(
    "/chat/completions",
    summary="Answer a chat",
    response_model=None,
    responses=reply_declared(ChatCompletion, chunk=ChatCompletionChunk),
)
async def chat_completions(
    body: ChatRequest,
    request: Request,
    namespace: Annotated[str, Depends(namespace_of)],
    client: Annotated[str, Depends(client_of)],
) -> Response:
    """Continue a chat with the backbone, or have its last message answered over an index."""
    service: Service = request.app.state.service
    settings = service.settings
    info = service.models.find(namespace, body.model)
    if body.top_logprobs is not None and not body.logprobs:
        raise InputError("it needs logprobs: true", where="top_logprobs")
    asked_in = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    samplings = samplings_of(body, body.answer_tokens, settings, asked_in)
    task = _task(service, namespace, info, body, samplings[0].max_tokens)
    writer = ChatWriter(
        info.id,
        fingerprint=f"fp_{service.backbone.fingerprint[:16]}",
        request_id=request.state.request_id,
        choices=len(samplings),
        index=info.index,
        texts=token_texts(service.backbone) if body.logprobs else None,
        usage=body.usage_wanted,
    )
    ticket = service.scheduler.submit(
        client,
        task,
        samplings,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        deadline_seconds=deadline_of(body, settings),
    )
    return await answer(
        request,
        Tickets([ticket]),
        writer,
        streamed=body.streamed,
        grace_seconds=settings.shutdown_seconds,
    )


def _task(
    service: Service, namespace: str, info: ModelInfo, body: ChatRequest, answer_tokens: int
) -> Task:
    if info.kind == "embedder":
        raise InputError(f"{info.id} is an embedder", where="model", hint="use POST /v1/embeddings")
    messages = [
        {
            "role": "system" if message.role == "developer" else message.role,
            "content": message.text,
        }
        for message in body.messages
    ]
    if info.index is not None:
        only_for("the backbone", body, _OF_PROMPTS)
        return service.models.question(
            namespace,
            info.index,
            messages,
            options=_options(body, service.settings),
            answer_tokens=answer_tokens,
        )
    only_for("models over an index, such as coinrag/NAME", body, _OF_QUESTIONS)
    return service.models.prompt(
        namespace,
        messages,
        answer_tokens=answer_tokens,
        reuse=body.reuse or "all",
        repair=body.repair,
    )


def _options(body: ChatRequest, settings: ServeSettings) -> QuestionOptions:
    return QuestionOptions(
        method=_method(body.method or settings.method, body.options or {}, settings),
        k_chunks=body.k_chunks,
        k_nuggets=body.k_nuggets,
        answer_lead=body.answer_lead or "",
        condense=body.condense,
        first_line=body.first_line is not False,
    )


def _method(name: str, options: Mapping[str, Any], settings: ServeSettings) -> Method:
    """The method a body asks for; what is wrong with it is wrong in one of two fields."""
    field = "method"
    try:
        types = option_types(method_class(name))
        field = "options"
        for option in options:
            if option in types and not is_bounded(types[option]):  # it may name a file
                raise InputError(
                    f"the option {option!r} is not for requests to set",
                    hint="leave it out; whoever runs the server has the setting method_options",
                )
        set_here = settings.method_options if name == settings.method else {}
        return method_named(name, {**set_here, **options})
    except InputError as error:
        raise InputError(error.what, where=field, hint=error.hint) from error
