"""Text completions: the backbone continues texts or token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.decode import Sampling
from coinkv.serve.api.answers import answer
from coinkv.serve.api.bodies import JsonRoute
from coinkv.serve.api.completions_writer import CompletionsWriter
from coinkv.serve.api.declared import reply_declared
from coinkv.serve.api.generating import deadline_of, samplings_of
from coinkv.serve.api.schemas.completions import Completion, CompletionRequest
from coinkv.serve.api.tickets import Tickets
from coinkv.serve.api.tokens import token_texts
from coinkv.serve.scheduler.ticket import Ticket
from coinkv.serve.security.access import client_of, namespace_of
from coinkv.serve.service import Service

router = APIRouter(prefix="/v1", tags=["answers"], route_class=JsonRoute)


@router.post(
    "/completions",
    summary="Continue texts",
    response_model=None,
    responses=reply_declared(Completion, chunk=Completion),
)
async def completions(
    body: CompletionRequest,
    request: Request,
    namespace: Annotated[str, Depends(namespace_of)],
    client: Annotated[str, Depends(client_of)],
) -> Response:
    """Continue one or more prompts, each as it stands: no chat template."""
    service: Service = request.app.state.service
    settings = service.settings
    info = service.models.find(namespace, body.model)
    if info.kind != "backbone":
        raise InputError(
            f"{info.id} continues no texts", where="model", hint="use POST /v1/chat/completions"
        )
    if body.echo and body.logprobs is not None:
        raise InputError("prompts have none: with echo they cannot be given", where="logprobs")
    samplings = samplings_of(body, body.max_tokens, settings, "max_tokens")
    prompts = body.prompts
    writer = CompletionsWriter(
        info.id,
        fingerprint=f"fp_{service.backbone.fingerprint[:16]}",
        request_id=request.state.request_id,
        echoes=await _echoes(service.backbone, prompts) if body.echo else [""] * len(prompts),
        choices=len(samplings),
        texts=None if body.logprobs is None else token_texts(service.backbone),
        usage=body.usage_wanted,
    )
    return await answer(
        request,
        Tickets(_submitted(service, namespace, client, body, samplings)),
        writer,
        streamed=body.streamed,
        grace_seconds=settings.shutdown_seconds,
    )


def _submitted(
    service: Service,
    namespace: str,
    client: str,
    body: CompletionRequest,
    samplings: Sequence[Sampling],
) -> list[Ticket]:
    """A ticket for each prompt: all of them are taken on, or none."""
    tickets: list[Ticket] = []
    try:
        for prompt in body.prompts:
            task = service.models.prompt(
                namespace,
                prompt,
                answer_tokens=samplings[0].max_tokens,
                reuse=body.reuse or "all",
                repair=body.repair,
            )
            ticket = service.scheduler.submit(
                client,
                task,
                samplings,
                logprobs=body.logprobs,
                deadline_seconds=deadline_of(body, service.settings),
            )
            tickets.append(ticket)
    except BaseException:
        for ticket in tickets:
            ticket.cancel()
        raise
    return tickets


async def _echoes(backbone: Backbone, prompts: Sequence[str | list[int]]) -> list[str]:
    def texts() -> list[str]:
        return [
            prompt if isinstance(prompt, str) else backbone.detokenize(prompt) for prompt in prompts
        ]

    return await asyncio.to_thread(texts)
