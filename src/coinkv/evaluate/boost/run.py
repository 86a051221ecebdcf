"""A run of the bench: layouts, systems and texts, resumable, into rows and their summary."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coinkv.errors import CoinKVError
from coinkv.evaluate.boost.crew import Crew
from coinkv.evaluate.boost.layouts import LAYOUTS, Layout, Sitting, sittings
from coinkv.evaluate.boost.record import Record, Rows
from coinkv.evaluate.boost.summary import summary
from coinkv.evaluate.boost.systems import Conditions, System, why_not
from coinkv.evaluate.boost.texts import asked_texts, spread_over_lengths
from coinkv.evaluate.boost.turns import ask_in_turn
from coinkv.evaluate.dataset import EvalSet

Step = Callable[[str, int, int], None]
ANSWER_LEAD = "The answer is: `"
"""Makes the first token one of the answer's own. Without it every answer of a small model begins
with "The", and all systems agree on that, whatever they have lost."""
_PATIENCE_SECONDS = 900.0
_AROUND_DOCUMENT = 256
"""Tokens kept free beside each of two texts for instructions, preamble, question and answer."""


@dataclass(frozen=True)
class BoostBench:
    """What is measured.

    Attributes:
        conditions: model, threads, cache: the same for all.
        systems: which systems.
        peers: interpreters of the peers' environments.
        layouts: which layouts.
        documents: how many texts; None takes all that fit.
        max_document_tokens: longer texts are left out; None: two must fit into a prompt.
        max_new_tokens: most tokens of an answer.
        answer_lead: first words of every answer, given to the model and not scored.
        seed: of texts, preambles and orders.
        out: file that every answer goes to, and that a run goes on from.
        patience_seconds: how long a system may be silent before it counts as failed.
    """

    conditions: Conditions
    systems: Sequence[System]
    peers: Mapping[str, Path] = field(default_factory=dict)
    layouts: Sequence[Layout] = LAYOUTS
    documents: int | None = None
    max_document_tokens: int | None = None
    max_new_tokens: int = 16
    answer_lead: str = ANSWER_LEAD
    seed: int = 0
    out: Path | None = None
    patience_seconds: float = _PATIENCE_SECONDS

    def run(self, eval_set: EvalSet, step: Step) -> dict[str, Any]:
        """Measure all systems in all layouts.

        Each layout begins with new processes and so with empty caches. What `out` holds of the same
        prompts under the same settings is not asked again, sitting by sitting.

        Args:
            eval_set: questions whose first passage is the text they share.
            step: told of stage, prompts done and of all.

        Returns:
            JSON-ready facts, see `coinkv.evaluate.boost.summary.summary`.

        Raises:
            InputError: the set or an option cannot be used.
            StorageError: `out` cannot be written.
            CoinKVError: no system answered anything.
        """
        record = Record(self.out)
        model = self.conditions.model
        half = model.context_length // 2
        longest = self.max_document_tokens or half - min(_AROUND_DOCUMENT, half // 4)
        texts = spread_over_lengths(
            asked_texts(eval_set, model.count_tokens), self.documents, longest, self.seed
        )
        planned = {
            layout: sittings(
                layout,
                texts,
                model,
                lead=self.answer_lead,
                room=self.max_new_tokens,
                seed=self.seed,
            )
            for layout in self.layouts
        }
        skipped = {s.name: why for s in self.systems if (why := why_not(s, self.peers))}
        measured = [system for system in self.systems if system.name not in skipped]
        failed: dict[str, dict[str, str]] = {}
        rows: Rows = []
        for layout, its_sittings in planned.items():
            pending = self._pending(layout, its_sittings, measured, record)
            failed[layout] = self._ask(layout, pending, record, step)
            for sitting in its_sittings:
                for system in measured:
                    rows += record.of(self._key(layout, sitting, system))
        if not rows:
            reasons = {**skipped, **{k: v for each in failed.values() for k, v in each.items()}}
            name, why = next(iter(reasons.items()))
            raise CoinKVError(f"no system answered; {name}: {why}")
        return {
            **summary(rows, self.layouts, [s.name for s in self.systems], skipped, failed),
            "documents": len(texts),
            "max_new_tokens": self.max_new_tokens,
            "answer_lead": self.answer_lead,
            "seed": self.seed,
            "model": model.name,
            "fingerprint": model.fingerprint,
            "settings": {system.name: self.conditions.settings(system) for system in measured},
        }

    def _key(self, layout: Layout, sitting: Sitting, system: System) -> str:
        """Digest of all that a system's rows of a sitting depend on."""
        facts = [
            layout,
            [asked.prompt for asked in sitting.prompts],
            self.max_new_tokens,
            system.name,
            self.conditions.settings(system),
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _pending(
        self,
        layout: Layout,
        its_sittings: Sequence[Sitting],
        systems: Sequence[System],
        record: Record,
    ) -> list[tuple[Sitting, dict[System, str]]]:
        """Sittings with the systems whose rows are missing, and the keys of these."""
        pending = []
        for sitting in its_sittings:
            keys = {system: self._key(layout, sitting, system) for system in systems}
            missing = {
                system: key
                for system, key in keys.items()
                if len(record.of(key)) < len(sitting.prompts)
            }
            if missing:
                pending.append((sitting, missing))
        return pending

    def _ask(
        self,
        layout: Layout,
        pending: Sequence[tuple[Sitting, dict[System, str]]],
        record: Record,
        step: Step,
    ) -> dict[str, str]:
        """Ask what is missing in a layout; why systems failed, by name."""
        systems = list(dict.fromkeys(system for _, missing in pending for system in missing))
        total = sum(len(sitting.prompts) for sitting, _ in pending)
        done = 0

        def on_prompt() -> None:
            nonlocal done
            done += 1
            step(layout, done, total)

        with Crew(self.conditions, self.peers, self.patience_seconds) as crew:
            crew.start(systems, lambda started: step("loading", started, len(systems)))
            for sitting, missing in pending:
                keys = {system.name: key for system, key in missing.items()}
                turn = {name: crew.workers[name] for name in keys if name in crew.workers}
                answered = ask_in_turn(
                    sitting,
                    turn,
                    self.max_new_tokens,
                    self.conditions.model.end_token_ids,
                    self.seed,
                    on_prompt,
                    crew.dismiss,
                )
                for name, rows in answered.items():
                    record.add(keys[name], layout, sitting.name, turn[name], rows)
        return crew.failed
