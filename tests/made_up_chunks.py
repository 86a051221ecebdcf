"""Made-up chunks kept in float32, and what transformers computes of them by itself: one forward
pass in which some runs of tokens see only themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from coinkv.methods.base import Context, Method, Workbench
from coinkv.methods.blocks import ChunkBlocks, ChunkTokens
from coinkv.model.backbone import Backbone
from coinkv.model.clock import StageClock
from coinkv.model.prompt import build_prompt
from coinkv.rag.ask import prefilled
from coinkv.rag.index import encoded_prefix
from coinkv.retrieval.two_stage import Retrieval
from coinkv.store.disk import DiskStore
from composing import ROOM, retrieval

SUFFIX = (7, 8, 9, 10)
LENGTHS = (20, 13, 17)
NUGGETS = [(2, 3, 9), (0, 12, 20), (2, 9, 12), (1, 0, 6), (0, 4, 9)]
_RANDOM = torch.Generator().manual_seed(1)
BY_HASH: dict[str, list[int]] = {
    sha256(bytes([length])).hexdigest(): torch.randint(
        3, 300, (length,), generator=_RANDOM
    ).tolist()
    for length in LENGTHS
}
CHUNKS = list(BY_HASH.values())
EVIDENCE = retrieval(list(BY_HASH), NUGGETS)

Segment = tuple[str, Sequence[int]]
"""Its kind, of which those called `alone` see themselves only, and its token ids."""


@pytest.fixture
def bench_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Backbone], Workbench]:
    """Makes a workbench of the chunks, encoded alone and rounded nowhere."""
    monkeypatch.setattr(
        "coinkv.methods.blocks._stored", lambda block: block.to(torch.float32, "cpu")
    )

    def made(backbone: Backbone) -> Workbench:
        prompt = build_prompt(backbone)
        blocks = ChunkBlocks(
            backbone,
            encoded_prefix(backbone, prompt),
            prompt.prefix_hash,
            DiskStore(tmp_path / "blocks"),
            "nothing",
            lambda content_hash: ChunkTokens(BY_HASH[content_hash], 0),
        )
        return Workbench(prompt, blocks, backbone)

    return made


@pytest.fixture
def bench(bench_of, tiny_backbone) -> Workbench:
    return bench_of(tiny_backbone("llama"))


def asked(
    method: Method, bench: Workbench, evidence: Retrieval = EVIDENCE
) -> tuple[Context, torch.Tensor]:
    """The context after the question's pass, and the logits `[1, vocabulary]`."""
    context = method.compose(bench, evidence, ROOM, StageClock(bench.backbone.synchronize))
    return context, prefilled(bench.backbone, context, SUFFIX)


def masked_logits(
    bench: Workbench,
    segments: Sequence[Segment],
    *,
    positions: torch.Tensor | None = None,
    link_vectors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits `[1, vocabulary]` behind the last token of one forward pass over all segments.

    Args:
        bench: whose model computes.
        segments: what it reads.
        positions: where the tokens stand; one behind the other by default.
        link_vectors: input vectors of the segments called `links`.
    """
    model = bench.backbone.model
    ids = torch.tensor([token for _, tokens in segments for token in tokens])
    segment = torch.tensor([at for at, (_, tokens) in enumerate(segments) for _ in tokens])
    kinds = [kind for kind, tokens in segments for _ in tokens]
    alone = torch.tensor([kind == "alone" for kind in kinds])
    at = torch.arange(len(ids))
    visible = (at[None] <= at[:, None]) & (~alone[:, None] | (segment[None] == segment[:, None]))
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        vectors = model.get_input_embeddings()(ids)
        if link_vectors is not None:
            vectors[torch.tensor([kind == "links" for kind in kinds])] = link_vectors
        output = model(
            inputs_embeds=vectors[None],
            attention_mask=mask[None, None],
            position_ids=(at if positions is None else positions)[None],
        )
    return output.logits[0, -1:].float()
