"""`coinkv ask`: one question, its answer streamed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coinkv.cli import options as shared
from coinkv.cli.output import console, milliseconds, print_json, results

if TYPE_CHECKING:
    from coinkv.rag.answer import Answer


def ask_command(
    question: Annotated[str, typer.Argument(help="The question.")],
    index: shared.IndexFolder,
    method: shared.MethodName = "coinrag",
    option: shared.MethodOptions = None,
    k_chunks: shared.KChunks = None,
    k_nuggets: shared.KNuggets = None,
    show_evidence: Annotated[
        bool, typer.Option("--show-evidence", help="Print the chunks with nuggets highlighted.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text.")] = None,
    all_lines: Annotated[
        bool, typer.Option("--all-lines", help="Go on behind the answer's first line.")
    ] = False,
    answer_lead: Annotated[
        str, typer.Option(help="First words of the answer, for the model to go on from.")
    ] = "",
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    adapter: shared.Adapter = None,
    no_adapter: shared.NoAdapter = False,
    adapter_scope: shared.AdapterScopeName = None,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Ask a question of an index; the answer is printed as it is decoded."""
    shared.use_threads(threads)
    from coinkv.methods.registry import method_named
    from coinkv.model.decode import Sampling
    from coinkv.rag.ask import CoinRAG
    from coinkv.rag.index import Index

    chosen_adapter = shared.adapter_chosen(adapter, no_adapter)
    stops = tuple(stop or ())
    sampling = Sampling(max_tokens, temperature, top_p, stops, seed, first_line=not all_lines)
    chosen = method_named(method, shared.method_options(option))
    opened = Index.open(index, model=model, device=device, dtype=dtype)
    asker = CoinRAG(
        opened,
        method=chosen,
        k_chunks=k_chunks,
        k_nuggets=k_nuggets,
        sampling=sampling,
        answer_lead=answer_lead,
        adapter=chosen_adapter,
        adapter_scope=shared.scope_named(adapter_scope),
    )
    stream = asker.stream(question)
    for text in stream:
        if not json:
            sys.stdout.write(text)
            sys.stdout.flush()
    answer = stream.answer
    if json:
        print_json(answer.to_dict())
        return
    sys.stdout.write("\n")
    if show_evidence:
        from coinkv.cli.evidence import show_evidence as show

        show(opened, answer.evidence)
        results.print()
    _print_timing(answer)


def _print_timing(answer: Answer) -> None:
    stages = ", ".join(
        f"{stage} {milliseconds(seconds)}" for stage, seconds in answer.stages_seconds.items()
    )
    used = answer.adapter
    with_it = f" with the adapter {used.name} ({used.digest[:8]})" if used else ""
    first_token = milliseconds(answer.ttft_seconds)
    console.print(
        f"{answer.method}{with_it}: first token after {first_token} ({stages}); "
        f"Len {answer.len_tokens} tokens",
        style="dim",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    repaired = answer.blocks_missing + answer.blocks_damaged
    if repaired:
        console.print(
            f"{answer.blocks_damaged} damaged and {answer.blocks_missing} missing KV blocks were "
            "recomputed from their text",
            style="yellow",
            soft_wrap=True,
        )
