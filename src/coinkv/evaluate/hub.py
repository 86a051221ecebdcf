"""Evaluation sets of others: loaded by hub name or folder, and brought into our own schema."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from coinkv.errors import InputError

Row = Mapping[str, Any]

_HUB_TIMEOUT_SECONDS = 5.0
_HEADING = re.compile(r"^Passage (\d+):[ \t]*$", re.MULTILINE)
_KNOWN = "our own schema, LongBench, HotpotQA, 2WikiMultihopQA, MuSiQue"


def hub_rows(name: str) -> Iterator[tuple[str, Row]]:
    """The rows of a set as the `datasets` library loads them, with name and row number of each.

    Args:
        name: `repository[:config[:split]]`; instead of a repository, a folder of JSONL or Parquet
            files. The config may be left empty. The split may be left out where there is only one.

    Raises:
        InputError: the library is missing, or it cannot load the set.
    """
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            "sets by name need the datasets library",
            where=name,
            hint="run: pip install 'coinkv[eval]'",
        ) from error
    repository, config, split = (*name.split(":", 2), "", "")[:3]
    folder = Path(repository).expanduser()
    is_folder = folder.is_dir()
    source = str(folder) if is_folder else repository
    with _quiet(datasets, offline=not is_folder and not _hub_answers(repository)):
        try:
            if not split:
                split = _only(datasets.get_dataset_split_names(source, config or None), name)
            rows = datasets.load_dataset(source, config or None, split=split)
        except InputError:
            raise
        except Exception as error:
            raise _not_loaded(name, is_folder, error) from error
    for number, row in enumerate(rows, 1):
        yield f"{name}, row {number}", row


def uniform(row: Row, where: str) -> Row:
    """A row of any kind that is known, as a row of our own schema (`dataset.read_set`).

    - LongBench (arXiv 2308.14508): `input`, `context`, `answers`. The blocks of the context, each
      `Passage 1:`, a title and a text, are the passages; without blocks it is one passage.
    - HotpotQA (arXiv 1809.09600), 2WikiMultihopQA (2011.01060): `question`, `answer`, `context`,
      `supporting_facts`. Articles named there are the gold passages, sentences a space apart.
    - MuSiQue (arXiv 2108.00573): `question`, `answer`, `answer_aliases`, `paragraphs`.
    - Our own: `qas`; or `question` and neither `context` nor `paragraphs`. Returned as it is.

    Raises:
        InputError: it is of none of these kinds; names its columns.
    """
    convert: Callable[[Row], Row]
    if "qas" in row or ("question" in row and not {"context", "paragraphs"} & row.keys()):
        return row
    if {"input", "context", "answers"} <= row.keys():
        convert = _longbench
    elif {"question", "answer", "context"} <= row.keys():
        convert = _hotpotqa
    elif {"question", "answer", "paragraphs"} <= row.keys():
        convert = _musique
    else:
        raise _unknown(row, where)
    try:
        return {"id": row.get("id", row.get("_id")), **convert(row)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unknown(row, where) from error


def _longbench(row: Row) -> Row:
    context: str = row["context"]
    # an article may itself hold such a line: only the next number begins a passage
    headings: list[re.Match[str]] = []
    for heading in _HEADING.finditer(context):
        if int(heading[1]) == len(headings) + 1:
            headings.append(heading)
    passages = [] if headings else [("", context)]
    for heading, following in zip_longest(headings, headings[1:]):
        block = context[heading.end() : following.start() if following else None].strip()
        title, _, text = block.partition("\n")
        passages.append((title.strip(), text) if text.strip() else ("", title))
    return {
        "question": row["input"],
        "answers": row["answers"],
        "passages": _with_text((title, text, None) for title, text in passages),
    }


def _hotpotqa(row: Row) -> Row:
    facts = row.get("supporting_facts") or []
    gold = set(facts["title"] if isinstance(facts, dict) else (title for title, _ in facts))
    passages = (
        (title, " ".join(filter(None, map(str.strip, sentences))), title in gold if gold else None)
        for title, sentences in _articles(row["context"])
    )
    answers = [row["answer"]] if row["answer"] else []
    return {"question": row["question"], "answers": answers, "passages": _with_text(passages)}


def _articles(context: Any) -> Iterator[tuple[str, list[str]]]:
    """Titles and sentences: two lists, as on the hub, or a list of pairs or of objects."""
    if isinstance(context, dict):
        yield from zip(context["title"], _sentences(context), strict=True)
        return
    for article in context:
        if isinstance(article, dict):
            yield article["title"], _sentences(article)
        else:
            title, sentences = article
            yield title, sentences


def _sentences(fields: Row) -> list[Any]:
    sentences: list[Any] = fields["sentences"] if "sentences" in fields else fields["content"]
    return sentences


def _musique(row: Row) -> Row:
    passages = (
        (each["title"], each["paragraph_text"], each.get("is_supporting"))
        for each in row["paragraphs"]
    )
    answers = [answer for answer in (row["answer"], *(row.get("answer_aliases") or ())) if answer]
    return {"question": row["question"], "answers": answers, "passages": _with_text(passages)}


def _with_text(passages: Iterator[tuple[str, str, bool | None]]) -> list[Row]:
    """Passages as objects; some articles of these sets are empty, and nothing can be retrieved."""
    return [
        {"title": title, "text": text, "is_supporting": label}
        for title, text, label in passages
        if text.strip()
    ]


def _unknown(row: Row, where: str) -> InputError:
    columns = ", ".join(map(str, row)) or "none"
    return InputError(
        f"its columns ({columns}) are of no known kind of set", where=where, hint=f"use {_KNOWN}"
    )


def _only(splits: list[str], name: str) -> str:
    if len(splits) == 1:
        return splits[0]
    repository, config, *_ = [*name.split(":"), ""]
    raise InputError(
        f"has the splits {', '.join(splits)}",
        where=name,
        hint=f"name one, like {repository}:{config}:{splits[-1]}",
    )


def _not_loaded(name: str, is_folder: bool, error: Exception) -> InputError:
    what, hint = "the folder cannot be loaded", "give a folder of JSONL or Parquet files"
    if not is_folder:
        what = "no file or folder here, and the hub set cannot be loaded"
        hint = "check the name (repository:config:split), the network and your hub login"
    if "scripts are no longer supported" in str(error):
        hint = "name a copy of the set in Parquet, or give its JSONL file"
    # what is wrong inside a file stands in the cause, which configs there are on the second line
    said = ", ".join(str(error.__cause__ or error).split("\n")[:2]).strip(" .")
    return InputError(f"{what} ({said})", where=name, hint=hint)


def _hub_answers(repository: str) -> bool:
    """Whether the hub can be asked now; if not, `datasets` would retry for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(repository, timeout=_HUB_TIMEOUT_SECONDS)
    except HfHubHTTPError as refusal:
        return refusal.response is None or refusal.response.status_code < 500
    except Exception:  # noqa: BLE001 - whatever the network does, what is on this machine remains
        return False
    return True


@contextmanager
def _quiet(datasets: Any, *, offline: bool) -> Iterator[None]:
    """Silence the library's bars and logs while loading; offline it uses what was loaded before."""
    from huggingface_hub import utils as hub

    logs = [(log, log.get_verbosity()) for log in (datasets.utils.logging, hub.logging)]
    bars = [each for each in (datasets, hub) if not each.are_progress_bars_disabled()]
    was_offline = datasets.config.HF_HUB_OFFLINE
    try:
        for log, _ in logs:
            log.set_verbosity(logging.CRITICAL)
        for each in bars:
            each.disable_progress_bars()
        datasets.config.HF_HUB_OFFLINE = was_offline or offline
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline
        for each in bars:
            each.enable_progress_bars()
        for log, level in logs:
            log.set_verbosity(level)
