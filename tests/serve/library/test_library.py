"""The library as a server uses it: uploads, removals, restarts, namespaces, deletions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from in_process_library import becomes_true, ended, everything_in, files, keys

from coinkv.errors import (
    BusyError,
    DocumentNotFoundError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    JobNotFoundError,
    NotReadyError,
)
from coinkv.rag.build import build
from small_corpus import DOCUMENTS, write_documents

ONE = {"one.txt": "The stone bridge was built in 1843."}
TWO = {"two.txt": "The mill grinds rye and barley."}


def add(library, documents=DOCUMENTS, namespace="default", name="village"):
    return library.add(namespace, name, files(documents))


def state(library, namespace="default", name="village"):
    return library.entry(namespace, name).state


def homes(libraries):
    return [path.parent for path in libraries.folder.rglob("index.json")]


def test_an_upload_makes_an_index_that_answers_when_its_job_is_done(libraries):
    library = libraries.start()
    job = add(library, {**DOCUMENTS, "broken.pdf": "%PDF", "photo.png": "x"})
    assert (job.state, job.kind, set(job.documents)) == ("waiting", "add", set(DOCUMENTS))
    done = ended(library, job)
    assert (done.state, done.error) == ("done", None)
    assert [each.file for each in done.skipped] == ["broken.pdf", "photo.png"]
    entry = library.entry("default", "village")
    assert (entry.state, entry.writable, entry.contents.documents) == ("ready", True, 5)
    assert entry.contents.nuggets > 15
    assert entry.contents.kv_bytes > 0
    assert entry.job == done
    assert libraries.published == 1
    with library.open("default", "village") as index:
        assert len(index.catalogue.documents()) == 5


def test_an_upload_without_a_readable_file_makes_nothing(libraries):
    library = libraries.start()
    with pytest.raises(InputError, match=r"no document could be read; a\.pdf is a damaged PDF"):
        add(library, {"a.pdf": "%PDF"})
    with pytest.raises(IndexNotFoundError):
        library.entry("default", "village")
    assert homes(libraries) == []


def test_questions_wait_for_the_first_index_and_see_the_old_one_until_the_new_is_whole(libraries):
    library = libraries.start()
    libraries.gate.clear()
    first = add(library, ONE)
    assert state(library) == "building"
    with pytest.raises(NotReadyError, match="being built"), library.open("default", "village"):
        pass
    libraries.gate.set()
    ended(library, first)
    libraries.gate.clear()
    second = add(library, TWO)
    assert state(library) == "ready"
    with library.open("default", "village") as old:
        libraries.gate.set()
        ended(library, second)
        with library.open("default", "village") as new:
            assert [d.key for d in new.catalogue.documents()] == ["one.txt", "two.txt"]
            assert (old.vectors.chunks, new.vectors.chunks) == (1, 2)
            # what the old one's vectors lead to can still be read
            assert old.catalogue.content(old.vectors.content_hash(0)).text == ONE["one.txt"]


def test_nothing_is_published_while_an_answer_uses_a_generation_before_the_newest(libraries):
    library = libraries.start()
    ended(library, add(library, ONE))
    with library.open("default", "village") as old:
        ended(library, add(library, TWO))
        third = add(library, {"three.txt": "A flood destroyed the arch."})
        other = add(library, ONE, name="other")
        ended(library, other)  # other indexes are not held up
        assert library.job("default", third.id).state == "waiting"
        assert old.catalogue.content(old.vectors.content_hash(0))
    assert ended(library, third).state == "done"


def test_uploads_that_come_while_a_job_runs_share_the_next_one(libraries):
    library = libraries.start()
    libraries.gate.clear()
    running = add(library, ONE)
    assert becomes_true(lambda: library.job("default", running.id).state == "running")
    second = add(library, {**TWO, "bad.pdf": "%PDF"})
    third = add(library, {"three.txt": "Three.", "two.txt": "Two, again."})
    assert second.id == third.id != running.id
    assert third.documents == ("two.txt", "three.txt")
    assert [each.file for each in third.skipped] == ["bad.pdf"]
    libraries.gate.set()
    ended(library, third)
    assert keys(library) == ["one.txt", "three.txt", "two.txt"]
    assert library.document("default", "village", "two.txt").text == "Two, again."


def test_removals_and_uploads_are_made_in_the_order_in_which_they_came(libraries):
    library = libraries.start()
    libraries.gate.clear()
    add(library, ONE)
    removal = library.remove("default", "village", "one.txt")  # of what still waits
    last = add(library, {**ONE, **TWO})
    assert removal.kind == "remove"
    libraries.gate.set()
    ended(library, last)
    assert keys(library) == ["one.txt", "two.txt"]


def test_a_removed_document_is_gone_for_readers_and_then_from_the_disk(libraries):
    library = libraries.start()
    ended(library, add(library, {**ONE, **TWO}))
    with library.open("default", "village") as old:
        ended(library, library.remove("default", "village", "two.txt"))
        assert keys(library) == ["one.txt"]
        assert old.catalogue.content(old.vectors.content_hash(1))
        assert library.entry("default", "village").contents.generation == 2
    assert becomes_true(lambda: library.entry("default", "village").contents.generation == 3)
    assert library.entry("default", "village").contents.kv_bytes < len(
        everything_in(libraries.folder / "data")
    )
    with library.open("default", "village") as index:
        assert index.vectors.chunks == 1


def test_the_last_document_leaves_an_empty_index_behind(libraries):
    library = libraries.start()
    ended(library, add(library, ONE))
    ended(library, library.remove("default", "village", "one.txt"))
    assert state(library) == "empty"
    assert becomes_true(lambda: library.entry("default", "village").contents.kv_bytes == 0)
    with pytest.raises(InputError, match="holds no documents"), library.open("default", "village"):
        pass
    assert ended(library, add(library, TWO)).state == "done"
    assert keys(library) == ["two.txt"]


def test_what_is_not_there_cannot_be_removed_or_read(libraries):
    library = libraries.start()
    ended(library, add(library, ONE))
    for act in (library.remove, library.document):
        with pytest.raises(DocumentNotFoundError, match="no document"):
            act("default", "village", "two.txt")
        with pytest.raises(IndexNotFoundError, match="no index"):
            act("default", "town", "one.txt")


def test_another_namespace_sees_nothing_of_it(libraries):
    library = libraries.start()
    job = ended(library, add(library, ONE, "blue"))
    assert library.entries("red") == ()
    for act in (
        lambda: library.entry("red", "village"),
        lambda: library.documents("red", "village"),
        lambda: library.document("red", "village", "one.txt"),
        lambda: library.remove("red", "village", "one.txt"),
        lambda: library.drop("red", "village"),
        lambda: library.open("red", "village").__enter__(),
    ):
        with pytest.raises(IndexNotFoundError):
            act()
    with pytest.raises(JobNotFoundError):
        library.job("red", job.id)
    ended(library, add(library, TWO, "red"))
    assert (keys(library, "blue"), keys(library, "red")) == (["one.txt"], ["two.txt"])


def test_namespaces_take_turns(libraries):
    library = libraries.start()
    libraries.gate.clear()
    jobs = [add(library, ONE, "blue", f"i{n}") for n in range(3)]
    assert becomes_true(lambda: library.job("blue", jobs[0].id).state == "running")
    last = add(library, ONE, "red", "i9")
    libraries.gate.set()
    for job in (*jobs, last):
        ended(library, job)
    begun = [Path(each.home).name.split("-")[0] for each in libraries.indexers[0].begun]
    assert begun.index("i9") < begun.index("i2")


def test_what_waited_when_a_server_ended_is_made_by_the_next_under_the_same_id(libraries):
    library = libraries.start()
    ended(library, add(library, ONE))
    libraries.gate.clear()
    running = add(library, TWO)
    assert becomes_true(lambda: library.job("default", running.id).state == "running")
    waiting = library.remove("default", "village", "one.txt")
    library = libraries.restart()
    assert state(library) == "ready"
    with library.open("default", "village") as index:
        assert len(index.catalogue.documents()) == 1
    assert library.job("default", running.id).documents == ("two.txt",)
    libraries.gate.set()
    assert ended(library, library.job("default", waiting.id)).state == "done"
    assert ended(library, library.job("default", running.id)).state == "done"
    assert keys(library) == ["two.txt"]
    assert all(not list((home / "incoming").iterdir()) for home in homes(libraries)) or (
        becomes_true(lambda: not any(list((h / "incoming").iterdir()) for h in homes(libraries)))
    )


def test_a_failed_job_says_why_leaves_the_index_and_is_not_tried_again(libraries, monkeypatch):
    library = libraries.start()
    ended(library, add(library, ONE))

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coinkv.serve.library.perform.build", full)
    failed = ended(library, add(library, TWO))
    assert failed.state == "failed"
    assert "No space left on device" in failed.error
    assert str(libraries.folder) not in failed.error
    assert state(library) == "ready"
    monkeypatch.undo()
    assert keys(library) == ["one.txt"]
    assert not any(list((home / "incoming").iterdir()) for home in homes(libraries))


def test_an_index_of_another_model_is_failed_and_says_so(libraries, tiny_backbone):
    library = libraries.start()
    ended(library, add(library, ONE))
    libraries.backbone = tiny_backbone("qwen2")
    library = libraries.restart()
    assert becomes_true(lambda: state(library) == "failed")
    entry = library.entry("default", "village")
    assert "built with" in entry.error
    assert str(libraries.folder / "data") not in entry.error
    with pytest.raises(IndexMismatchError), library.open("default", "village"):
        pass
    with pytest.raises(IndexMismatchError):
        add(library, TWO)


def test_a_deleted_index_is_gone_at_once_and_its_files_when_no_answer_uses_it(libraries):
    library = libraries.start()
    ended(library, add(library, ONE))
    (home,) = homes(libraries)
    with library.open("default", "village") as index:
        library.drop("default", "village")
        assert library.entries("default") == ()
        content = index.catalogue.content(index.vectors.content_hash(0))
        assert content.text == ONE["one.txt"]
        ended(library, add(library, TWO))  # a new one of the same name, meanwhile
    assert becomes_true(lambda: not home.exists())
    assert keys(library) == ["two.txt"]


def test_a_deletion_that_was_cut_off_is_never_served_again(libraries):
    library = libraries.start()
    ended(library, add(library, ONE))
    (home,) = homes(libraries)
    with library.open("default", "village"):
        library.drop("default", "village")
        library = libraries.restart()
        assert library.entries("default") == ()
        assert not home.exists()
    gone = home.with_name(f".gone-{home.name}")
    gone.mkdir()
    libraries.restart()
    assert not gone.exists()


def test_jobs_of_a_deleted_index_end(libraries):
    library = libraries.start()
    libraries.gate.clear()
    running = add(library, ONE)
    assert becomes_true(lambda: library.job("default", running.id).state == "running")
    waiting = add(library, TWO)
    library.drop("default", "village")
    for job in (running, waiting):
        assert (ended(library, job).state, ended(library, job).error) == (
            "failed", "the index was deleted",
        )  # fmt: skip
    assert becomes_true(lambda: homes(libraries) == [])


def test_an_index_built_elsewhere_is_served_under_its_folders_name_and_can_be_changed(
    libraries, options, tmp_path
):
    for parent in ("a", "b"):
        build(write_documents(tmp_path / "docs", ONE), tmp_path / parent / "My Law!", options)
    given = (tmp_path / "a" / "My Law!", tmp_path / "b" / "My Law!")
    library = libraries.start(indexes=given)
    assert [entry.name for entry in library.entries("default")] == ["My-Law", "My-Law-2"]
    ended(library, add(library, TWO, name="My-Law-2"))
    library = libraries.restart(indexes=given[1:])
    assert [entry.name for entry in library.entries("default")] == ["My-Law-2"]
    assert keys(library, name="My-Law-2") == ["one.txt", "two.txt"]
    entry = library.entry("default", "My-Law-2")
    assert (entry.removable, entry.follows) == (False, False)
    with pytest.raises(InputError, match="settings say so"):
        library.drop("default", "My-Law-2")


def test_an_index_that_another_process_rebuilds_is_opened_anew(libraries, options, tmp_path):
    folder = tmp_path / "law"
    build(write_documents(tmp_path / "docs", ONE), folder, options)
    library = libraries.start(indexes=(folder,))
    with library.open("default", "law") as index:
        assert index.vectors.chunks == 1
    build(write_documents(tmp_path / "docs", TWO), folder, options)
    with library.open("default", "law"):
        pass
    assert becomes_true(lambda: library.entry("default", "law").contents.documents == 2)
    with library.open("default", "law") as index:
        assert index.vectors.chunks == 2


def test_a_folder_without_an_index_is_failed_until_one_is_built_there(libraries, options, tmp_path):
    (tmp_path / "nothing").mkdir()
    library = libraries.start(indexes=(tmp_path / "nothing",))
    entry = library.entry("default", "nothing")
    assert entry.state == "failed"
    assert "no index in this folder" in entry.error
    build(write_documents(tmp_path / "docs", ONE), tmp_path / "nothing", options)
    with pytest.raises(IndexNotFoundError), library.open("default", "nothing"):
        pass  # it is looked at again behind this question
    assert becomes_true(lambda: state(library, name="nothing") == "ready")


def test_a_folder_of_documents_is_followed_from_start_to_start(libraries, tmp_path):
    docs = write_documents(tmp_path / "Our Docs", ONE)
    library = libraries.start(docs=docs)
    assert state(library, name="Our-Docs") in ("building", "ready")
    job = library.entry("default", "Our-Docs").job
    assert job.kind == "docs"
    assert ended(library, job).documents == ("one.txt",)
    ended(library, add(library, {"mine.txt": "Uploaded."}, name="Our-Docs"))
    write_documents(docs, TWO)
    (docs / "one.txt").unlink()
    library = libraries.restart(docs=docs)
    ended(library, library.entry("default", "Our-Docs").job)
    assert keys(library, name="Our-Docs") == ["mine.txt", "two.txt"]
    entry = library.entry("default", "Our-Docs")
    assert (entry.removable, entry.follows) == (False, True)
    with pytest.raises(InputError, match="settings say so"):
        library.drop("default", "Our-Docs")
    library = libraries.restart()  # without the setting it is an index like others
    entry = library.entry("default", "Our-Docs")
    assert (entry.removable, entry.follows) == (True, False)
    assert keys(library, name="Our-Docs") == ["mine.txt", "two.txt"]
    library.drop("default", "Our-Docs")


def test_a_folder_of_documents_that_is_not_there_is_refused_at_the_start(libraries, tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        libraries.start(docs=tmp_path / "gone")


def test_two_servers_do_not_share_a_data_folder(libraries):
    libraries.start()
    with pytest.raises(InputError, match="another server uses"):
        libraries.start()
    libraries.opened[-1].close()
    libraries.start()


def test_who_comes_when_too_much_waits_is_asked_to_come_again(libraries, monkeypatch):
    monkeypatch.setattr("coinkv.serve.library.waiting.MOST_WAITING", 1)
    library = libraries.start()
    libraries.gate.clear()
    first = add(library, ONE)
    assert becomes_true(lambda: library.job("default", first.id).state == "running")
    second = add(library, ONE, name="second")
    with pytest.raises(BusyError):
        add(library, ONE, name="third")
    assert add(library, TWO, name="second").id == second.id  # joining takes no place


def test_a_stray_folder_and_a_damaged_record_do_not_keep_a_server_from_starting(libraries):
    library = libraries.start()
    ended(library, add(library, ONE))
    (home,) = homes(libraries)
    (home.parent / "stray").mkdir()
    shutil.copytree(home, home.parent / "damaged")
    (home.parent / "damaged" / "index.json").write_text(json.dumps({"name": "x"}))
    (home.parent.parent / "file").write_text("")
    library = libraries.restart()
    assert [entry.name for entry in library.entries("default")] == ["village"]


def test_indexes_that_nobody_uses_are_closed_beyond_a_number(libraries, monkeypatch):
    monkeypatch.setattr("coinkv.serve.library.indexing.MOST_OPEN", 1)
    library = libraries.start()
    for name in ("a", "b", "c"):
        ended(library, add(library, ONE, name=name))
    shelves = library._shelves
    assert becomes_true(lambda: sum(shelf.generations.is_open for shelf in shelves) == 1)
    for name in ("a", "b", "c"):
        with library.open("default", name) as index:
            assert index.vectors.chunks == 1


def test_an_empty_index_can_be_made_ahead(libraries):
    library = libraries.start()
    entry, is_new = library.create("default", "village")
    assert (entry.state, entry.job, is_new) == ("empty", None, True)
    assert library.create("default", "village")[1] is False
    assert libraries.restart().entry("default", "village").state == "empty"
    with pytest.raises(InputError, match="cannot be the name"):
        library.create("default", "../up")
