"""A run: every case asked with and without its injection, with and without the mark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coinkv.errors import InputError
from coinkv.evaluate.injection.cases import InjectionCase
from coinkv.evaluate.injection.summary import summary
from coinkv.evaluate.provenance import versions
from coinkv.model.backbone import Backbone
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import decode_batch
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import BuildOptions, build
from coinkv.rag.index import Index

METHODS = ("standard_rag", "standard_cag", "coinrag")
_BATCH = 8


@dataclass(frozen=True)
class InjectionBench:
    """How cases are asked, the same for all methods.

    Attributes:
        backbone: the model that answers.
        methods: which methods.
        k_chunks: chunks retrieved. 1 leaves the case's own document alone in the context, so that
            no other case's injection can be obeyed, and nothing else draws attention.
        k_nuggets: nuggets retrieved of them; fewer where there are fewer.
        answer_tokens: most tokens of an answer, which may have many lines.
    """

    backbone: Backbone
    methods: Sequence[str] = METHODS
    k_chunks: int = 1
    k_nuggets: int = 5
    answer_tokens: int = 40

    def run(
        self, cases: Sequence[InjectionCase], step: Callable[[str, int, int], None]
    ) -> dict[str, Any]:
        """Ask all cases; answers are decoded greedily.

        Args:
            cases: documents with questions.
            step: told of stage, cases done and of all.

        Returns:
            JSON-ready facts: `coinkv.evaluate.injection.summary.summary`, what they were made with,
            and a row an answer.

        Raises:
            InputError: no cases, no methods or an unknown one, or a number below 1.
        """
        if not cases:
            raise InputError("there are no cases to ask")
        if not self.methods:
            raise InputError("there are no methods to ask by")
        rows = []
        with TemporaryDirectory(prefix="coinkv-injection-") as root:
            for mark in (False, True):
                for injected in (False, True):
                    name = f"{'' if mark else 'un'}marked, {'injected' if injected else 'clean'}"
                    index = self._index(cases, Path(root, name), mark=mark, injected=injected)
                    try:
                        for row in self._asked(index, cases, name, step):
                            rows.append({"mark": mark, "injected": injected, **row})
                    finally:
                        index.catalogue.close()
        settings = {name: value for name, value in vars(self).items() if name != "backbone"}
        return {
            **summary(rows, self.methods),
            "cases": len(cases),
            "settings": {**settings, "methods": list(self.methods)},
            "model": self.backbone.name,
            "fingerprint": self.backbone.fingerprint,
            "versions": versions(),
            "rows": rows,
        }

    def _index(
        self, cases: Sequence[InjectionCase], folder: Path, *, mark: bool, injected: bool
    ) -> Index:
        """An index of the cases' documents."""
        documents = folder.with_suffix(".jsonl")
        with documents.open("w", encoding="utf-8") as file:
            for case in cases:
                text = case.injected if injected else case.passage
                file.write(json.dumps({"id": case.id, "title": case.title, "text": text}) + "\n")
        build(documents, folder, BuildOptions(model=self.backbone, mark=mark))
        return Index.open(folder, model=self.backbone)

    def _asked(
        self,
        index: Index,
        cases: Sequence[InjectionCase],
        name: str,
        step: Callable[[str, int, int], None],
    ) -> Iterator[dict[str, Any]]:
        """A row for every case and method."""
        sampling = Sampling(self.answer_tokens)
        for number, method in enumerate(self.methods):
            asker = CoinRAG(
                index,
                method=method,
                k_chunks=min(self.k_chunks, index.vectors.chunks),
                k_nuggets=min(self.k_nuggets, index.vectors.nuggets),
            )
            for at in range(0, len(cases), _BATCH):
                step(name, number * len(cases) + at, len(cases) * len(self.methods))
                for case, row in _answers(asker, cases[at : at + _BATCH], sampling):
                    yield {"id": case.id, "kind": case.kind, "method": method, **row}


def _answers(
    asker: CoinRAG, cases: Sequence[InjectionCase], sampling: Sampling
) -> Iterator[tuple[InjectionCase, dict[str, Any]]]:
    firsts = [asker.first_token(case.question, answer_tokens=sampling.max_tokens) for case in cases]
    decoded = decode_batch(
        asker.bench.backbone,
        [first.context.cache for first in firsts],
        [first.logits for first in firsts],
        sampling,
    )
    for case, first, answer in zip(cases, firsts, decoded, strict=True):
        evidence = asker.evidence(first)
        yield (
            case,
            {
                "answer": answer.text.strip(),
                "outcome": case.outcome(answer.text),
                "answered": case.answers_in(answer.text),
                "own_document": any(piece.document == case.id for piece in evidence),
                "injection_shown": _shown(case, [piece.text for piece in evidence]),
                "ttft_ms": 1000 * first.clock.total_seconds,
                "suffix_tokens": len(first.suffix_ids),
            },
        )


def _shown(case: InjectionCase, texts: Sequence[str]) -> bool:
    """Whether a line of the injection stands in the evidence."""
    shown = "\n".join(texts)
    return any(line in shown for line in case.injection.splitlines() if line.strip())
