"""Ablations: a variant of CoinRAG beside the same configuration without the change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coinkv.evaluate.budget import usual_index
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.results import Result
from coinkv.evaluate.significance import Difference, paired_bootstrap

OPTIONS = frozenset({"encoding", "stages", "align", "order", "encode_after", "title"})
"""Options of CoinRAG that take a part of it away or exchange it."""
_COMPETES = ("title", "shown")
"""Adds to the context instead, and so is chosen like any other value."""
_FAMILY = ("coinrag", "coinrag_cacheblend", "coinrag_kvlink")


@dataclass(frozen=True)
class Ablation:
    """A variant and its plain partner on one half of a set, or of all sets together.

    Attributes:
        change: what was changed: `encoding=isolated`, `index=windows`, `adapter=name`.
        label: the configuration without the change: `3, 10`.
        method: `coinrag` or one built on it.
        pairs: plain and variant result of each set.
        difference: F1 of the variant minus that of the plain one, over all questions of `pairs`.
    """

    change: str
    label: str
    method: str
    pairs: tuple[tuple[Result, Result], ...]
    difference: Difference


def is_ablation(configuration: Configuration, usual: str | None) -> bool:
    """Whether a configuration is a variant that does not compete with the other methods.

    Args:
        configuration: what was run.
        usual: label of the index that most results were made on.
    """
    changed = any(n in OPTIONS and (n, v) != _COMPETES for n, v in configuration.options)
    return configuration.method in _FAMILY and (changed or configuration.index != usual)


def ablations(results: Sequence[Result]) -> tuple[tuple[Ablation, ...], tuple[Result, ...]]:
    """Variants with their partners, and variants whose partner was not run.

    An adapter, or a title that is shown, is a change too, though configurations with one compete.

    Args:
        results: of one backbone, ablations among them.

    Returns:
        For each change and configuration one a set and, where there are several sets, one of all
        sets together; then the results that have no partner on their half.
    """
    usual = usual_index(results)
    by_run = {(r.set, r.half, r.configuration): r for r in results}
    found: dict[tuple[str, Configuration], dict[str, tuple[Result, Result]]] = {}
    alone = []
    for variant in sorted(results, key=lambda r: ("all", "dev", "test").index(r.half)):
        plain = _plain(variant.configuration, usual)
        if plain == variant.configuration:
            continue
        partner = by_run.get((variant.set, variant.half, plain))
        if partner is not None and partner.per_question_f1.keys() & variant.per_question_f1.keys():
            pairs = found.setdefault((_change(variant.configuration, plain), plain), {})
            pairs[variant.set] = (partner, variant)  # the test half comes last and stays
        elif is_ablation(variant.configuration, usual):
            alone.append(variant)
    shown = []
    changes = list(dict.fromkeys(change for change, _ in found))
    for (change, plain), pairs in sorted(found.items(), key=lambda f: changes.index(f[0][0])):
        groups: list[tuple[tuple[Result, Result], ...]] = [(pair,) for pair in pairs.values()]
        groups += [tuple(pairs.values())] if len(pairs) > 1 else []
        shown += [_ablation(change, plain, group) for group in groups]
    return tuple(shown), tuple(alone)


def _ablation(
    change: str, plain: Configuration, pairs: tuple[tuple[Result, Result], ...]
) -> Ablation:
    before = {(p.set, id_): f1 for p, _ in pairs for id_, f1 in p.per_question_f1.items()}
    after = {(v.set, id_): f1 for _, v in pairs for id_, f1 in v.per_question_f1.items()}
    return Ablation(change, plain.label, plain.method, pairs, paired_bootstrap(after, before))


def _plain(configuration: Configuration, usual: str | None) -> Configuration:
    """The configuration without its change: itself where it has none."""
    if configuration.method not in _FAMILY:
        return configuration
    kept = tuple((name, value) for name, value in configuration.options if name not in OPTIONS)
    if is_ablation(configuration, usual):
        return replace(configuration, options=kept, index=usual or configuration.index)
    return replace(configuration, options=kept, adapter=None)


def _change(variant: Configuration, plain: Configuration) -> str:
    changes = [f"{name}={value}" for name, value in variant.options if name in OPTIONS]
    changes += [f"index={variant.index}"] if variant.index != plain.index else []
    changes += [f"adapter={variant.adapter}"] if variant.adapter != plain.adapter else []
    return ", ".join(changes)
