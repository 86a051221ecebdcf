"""Indexes of a sweep: one a set and label, built once from the passages of the set."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.documents import read_documents
from coinkv.errors import IndexNotFoundError, InputError
from coinkv.evaluate.dataset import EvalSet, write_passages
from coinkv.model.backbone import Backbone
from coinkv.rag.build import BuildOptions, OnProgress, build
from coinkv.rag.index import Index, open_published

_PASSAGES = "passages.jsonl"


def folder_name(name: str) -> str:
    """A set's name as that of one folder, which neither a path nor a hub set's name is."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "set"


def index_of(
    eval_set: EvalSet,
    folder: Path,
    label: str,
    options: BuildOptions,
    backbone: Backbone | None,
    tell: OnProgress,
) -> Index:
    """The index of a set, built from its passages where it is not there yet.

    Every question retrieves among the passages of the whole set, whatever half is asked (paper
    arXiv 2608.07458, section 4.1).

    Args:
        eval_set: the whole set.
        folder: of the set's indexes; takes the passages as a file beside them.
        label: of the index.
        options: how it is built.
        backbone: the model if it is loaded already.
        tell: told of every step of a build.

    Raises:
        InputError: the set has no passages to build from, or an index is there that lacks some.
        IndexMismatchError: an index is there of another model, prompt or format version.
    """
    place = folder / label
    options = replace(options, model=backbone or options.model)
    try:
        catalogue, _, _ = open_published(place)
    except IndexNotFoundError:
        write_passages(eval_set, folder / _PASSAGES)
        build(folder / _PASSAGES, place, options, tell)
    else:
        with closing(catalogue):
            _require_passages(eval_set, catalogue, place)
    return Index.open(place, model=options.model, device=options.device, dtype=options.dtype)


def _require_passages(eval_set: EvalSet, catalogue: Catalogue, place: Path) -> None:
    """Refuse an index that was made of another file of this name: no method could find the gold."""
    if not any(row.passages for row in eval_set.rows):
        return
    with TemporaryDirectory() as folder:
        passages = Path(folder) / _PASSAGES
        write_passages(eval_set, passages)
        wanted = {document.content_hash for document in read_documents(passages)}
    missing = wanted - {row.content_hash for row in catalogue.documents()}
    if missing:
        raise InputError(
            f"the index lacks {len(missing)} of the {len(wanted)} passages of {eval_set.name}",
            where=place,
            hint="remove it to have it built again, or use another folder or label",
        )
