"""What was sealed comes back as it was, or not at all."""

from __future__ import annotations

import json

import pytest

from coinkv.train.sealed import sealed, unsealed

FACTS = {"step": 3, "loss": 0.1, "best": None, "names": ["é", "b"], "text": "\u202e"}


@pytest.fixture
def kept(tmp_path):
    """A folder with a file in a folder of its own, and what was sealed with it."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "weights").write_bytes(b"12345")
    return tmp_path, sealed(FACTS, tmp_path, ["inner/weights"])


def test_facts_come_back_wherever_their_files_lie_now(kept, tmp_path):
    folder, text = kept
    assert unsealed(text, folder) == FACTS
    moved = tmp_path / "moved"
    (moved / "inner").mkdir(parents=True)
    (moved / "inner" / "weights").write_bytes(b"12345")
    assert unsealed(text, moved) == FACTS


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.update(step=4),
        lambda facts: facts.update(step=3.0),
        lambda facts: facts.pop("best"),
        lambda facts: facts.update(more=1),
        lambda facts: facts["files"].clear(),
        lambda facts: facts["files"]["inner/weights"].update(bytes=6),
        lambda facts: facts.pop("seal"),
        lambda facts: facts.update(seal=None),
    ],
)
def test_changed_facts_do_not_come_back(kept, change):
    folder, text = kept
    facts = json.loads(text)
    change(facts)
    with pytest.raises(ValueError, match="not what was written"):
        unsealed(json.dumps(facts), folder)


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{}", '{"seal": 1}', "[" * 100_000])
def test_what_was_never_sealed_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"Expecting|not what was written"):
        unsealed(text, tmp_path)


@pytest.mark.parametrize("content", [b"12344", b"1234", b"", None])
def test_a_file_that_changed_or_went_is_named(kept, content):
    folder, text = kept
    file = folder / "inner" / "weights"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(ValueError, match="inner/weights is not what was written"):
        unsealed(text, folder)
