"""What a job makes of an index, and that doing it twice changes nothing."""

from __future__ import annotations

import pytest
from in_process_library import everything_in

from coinkv.errors import DocumentError, IndexMismatchError
from coinkv.rag.build import BuildOptions
from coinkv.rag.index import Index
from coinkv.rag.verify import verify
from coinkv.serve.library.assignment import Assignment, Outcome
from coinkv.serve.library.contents import contents_of, document_of, list_documents
from coinkv.serve.library.incoming import Incoming
from coinkv.serve.library.jobs import new_job_id
from coinkv.serve.library.perform import Performer
from small_corpus import CHUNK_TOKENS, DOCUMENTS, block_files, write_documents


class Desk:
    """Gives assignments for one index, as the server would."""

    def __init__(self, home, options):
        self.home, self.folder = home, home / "index"
        self.incoming = Incoming(home / "incoming")
        self.steps = []
        self.performer = Performer(lambda: options, lambda *step: self.steps.append(step))

    def perform(self, kind, *changes, docs=None) -> Outcome:
        written = [self.incoming.write("add", new_job_id(), rows) for rows in changes]
        paths = tuple(str(change.path) for change in written)
        assignment = Assignment(kind, str(self.folder), str(self.home), paths, docs and str(docs))
        assert Assignment.from_line(assignment.to_line()) == assignment
        return self.performer.perform(assignment)

    def add(self, *rows):
        return self.perform("add", rows)

    def remove(self, *keys):
        return self.perform("remove", [{"id": key} for key in keys])

    def follow(self, docs):
        return self.perform("docs", docs=docs)

    def keys(self):
        return [each.key for each in list_documents(self.folder, "", 100)]


def row(key, text=None, title=""):
    return {"id": key, "title": title, "text": text or DOCUMENTS[key]}


FISH, WORDS, BRIDGE = (row(key) for key in ("fish.txt", "words.txt", "bridge.txt"))


@pytest.fixture
def desk(tmp_path, options):
    return Desk(tmp_path, options)


def test_documents_are_added_to_those_that_are_there(desk):
    first = desk.add(FISH)
    assert (first.published, first.documents, first.generation) == (True, ("fish.txt",), 1)
    assert desk.add(WORDS, BRIDGE).generation == 2
    assert desk.keys() == ["bridge.txt", "fish.txt", "words.txt"]
    assert verify(desk.folder).clean


def test_a_document_of_the_same_key_is_replaced_and_the_later_one_of_two_counts(desk):
    desk.add(FISH)
    desk.perform("add", [row("fish.txt", "No fish.")], [row("fish.txt", "Many fish.")])
    assert document_of(desk.folder, "fish.txt").text == "Many fish."
    assert desk.keys() == ["fish.txt"]


def test_a_job_that_was_done_already_loads_no_model_and_publishes_nothing(desk):
    desk.add(FISH)
    desk.performer = Performer(lambda: pytest.fail("a model was asked for"), lambda *_: None)
    again = desk.add(FISH)
    assert (again.published, again.generation, again.documents) == (False, 1, ("fish.txt",))
    assert desk.remove("gone.txt") == Outcome(published=False, generation=1)


def test_a_document_is_removed_and_the_others_stay(desk):
    desk.add(FISH, WORDS)
    assert desk.remove("fish.txt", "fish.txt", "none.txt").documents == ("fish.txt",)
    assert desk.keys() == ["words.txt"]
    assert verify(desk.folder).clean


def test_the_last_document_goes_too_and_others_may_come_behind_it(desk, backbone):
    desk.add(FISH)
    assert desk.remove("fish.txt").published
    assert contents_of(desk.folder).documents == 0
    assert contents_of(desk.folder).generation == 2
    assert desk.remove("fish.txt").published is False
    desk.add(WORDS)
    assert desk.keys() == ["words.txt"]
    assert Index.open(desk.folder, model=backbone).vectors.chunks == contents_of(desk.folder).chunks
    assert verify(desk.folder).clean


@pytest.mark.parametrize("kept", [(), (WORDS,)])
def test_what_was_removed_is_gone_from_the_disk_behind_a_purge(desk, kept):
    desk.add(FISH, *kept)
    generation = desk.remove("fish.txt").generation
    assert b"Herons hunt" in everything_in(desk.folder)
    assert desk.perform("purge", [{"generation": generation}]).published
    contents = contents_of(desk.folder)
    assert contents.documents == len(kept)
    assert len(block_files(desk.folder)) == contents.chunks
    assert b"Herons hunt" not in everything_in(desk.folder)
    assert desk.perform("purge", [{"generation": generation}]).published is False


def test_a_purge_keeps_what_a_reader_of_the_newest_generation_needs(desk, backbone):
    desk.add(FISH, WORDS)
    generation = desk.remove("fish.txt").generation
    index = Index.open(desk.folder, model=backbone)
    desk.perform("purge", [{"generation": generation}])
    for n in range(index.vectors.chunks):
        content = index.catalogue.content(index.vectors.content_hash(n))
        assert index.catalogue.placements_of(content.content_hash)


def test_an_index_of_another_model_is_refused_and_stays_as_it_is(desk, tiny_folder):
    desk.add(FISH)
    other = BuildOptions(model=str(tiny_folder("qwen2")), device="cpu", chunk_tokens=CHUNK_TOKENS)
    desk.performer = Performer(lambda: other, lambda *_: None)
    with pytest.raises(IndexMismatchError):
        desk.add(WORDS)
    assert desk.keys() == ["fish.txt"]
    assert list(desk.home.glob("work-*")) == []


def test_an_index_that_keeps_its_kv_in_another_codec_is_added_to_in_its_own(desk, backbone):
    options = BuildOptions(model=backbone, chunk_tokens=CHUNK_TOKENS, codec="int8")
    Desk(desk.home, options).add(FISH)
    wanted = BuildOptions(model=backbone, codec="raw", mark=True)
    desk.performer = Performer(lambda: wanted, lambda *_: None)
    desk.add(WORDS)
    kept = Index.open(desk.folder, model=backbone).settings
    assert (kept.codec, kept.mark) == ("int8", False)


def test_progress_is_told_by_stage(desk):
    desk.add(FISH, WORDS)
    assert {"encoding chunks", "publishing"} <= {stage for stage, _, _ in desk.steps}
    chunks = contents_of(desk.folder).chunks
    assert ("encoding chunks", chunks, chunks) in desk.steps


def test_a_folder_is_followed_by_what_it_has_gains_changes_and_loses(desk, tmp_path):
    write_documents(tmp_path / "docs" / "a", {"one.txt": "One."})
    docs = write_documents(tmp_path / "docs", {"two.txt": "Two."})
    assert desk.follow(docs).documents == ("a/one.txt", "two.txt")
    assert desk.follow(docs).published is False
    (docs / "two.txt").write_text("Two, changed.")
    (docs / "a" / "one.txt").unlink()
    (docs / "three.txt").write_text("Three.")
    assert desk.follow(docs).published
    assert desk.keys() == ["three.txt", "two.txt"]
    assert document_of(desk.folder, "two.txt").text == "Two, changed."


def test_uploads_to_an_index_that_follows_a_folder_stay(desk, tmp_path):
    docs = write_documents(tmp_path / "docs", {"one.txt": "One.", "two.txt": "Two."})
    desk.follow(docs)
    desk.add(row("mine.txt", "Uploaded."), row("two.txt", "Two, uploaded."))
    (docs / "two.txt").write_text("Two, changed in the folder.")
    desk.follow(docs)
    assert desk.keys() == ["mine.txt", "one.txt", "two.txt"]
    assert document_of(desk.folder, "two.txt").text == "Two, uploaded."
    (docs / "two.txt").unlink()
    (docs / "one.txt").unlink()
    (docs / "zero.txt").write_text("Zero.")
    desk.follow(docs)
    assert desk.keys() == ["mine.txt", "two.txt", "zero.txt"]


def test_the_folder_gets_a_name_back_when_the_upload_of_that_name_is_removed(desk, tmp_path):
    docs = write_documents(tmp_path / "docs", {"two.txt": "Two.", "one.txt": "One."})
    desk.follow(docs)
    desk.add(row("two.txt", "Two, uploaded."))
    desk.remove("two.txt")
    desk.follow(docs)
    assert document_of(desk.folder, "two.txt").text == "Two."


def test_a_file_of_the_folder_that_cannot_be_read_is_skipped_with_the_reason(desk, tmp_path):
    docs = write_documents(
        tmp_path / "docs", {"one.txt": "One.", "empty.txt": "", ".hidden.txt": "x"}
    )
    (docs / "photo.png").write_bytes(b"\x89PNG")
    outcome = desk.follow(docs)
    assert outcome.documents == ("one.txt",)
    assert [each.file for each in outcome.skipped] == ["empty.txt", "photo.png"]
    assert all(each.reason for each in outcome.skipped)
    assert (
        Outcome.from_facts({**vars(outcome), "skipped": [vars(each) for each in outcome.skipped]})
        == outcome
    )


def test_a_folder_without_documents_takes_nothing_away(desk, tmp_path):
    docs = write_documents(tmp_path / "docs", {"one.txt": "One."})
    desk.follow(docs)
    (docs / "one.txt").unlink()
    with pytest.raises(DocumentError, match="no readable document"):
        desk.follow(docs)
    with pytest.raises(DocumentError, match="no such folder"):
        desk.follow(tmp_path / "gone")
    assert desk.keys() == ["one.txt"]
