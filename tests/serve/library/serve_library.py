"""A process that runs a library with a real indexing process, as a server does: for tests to kill.

Arguments: data folder, model folder. Reads the commands `add NAME TEXT` from standard input, and
prints a line of JSON when it has started, after each upload, and whenever something is published.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path

from coinkv.model.load import load
from coinkv.rag.index import Index
from coinkv.serve.library.library import Library
from coinkv.serve.library.uploads import UploadedFile
from coinkv.serve.settings import ServeSettings


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    data, model = map(Path, sys.argv[1:3])
    backbone = load(str(model), device="cpu")
    library = Library(
        ServeSettings(data_dir=data, model=str(model), device="cpu"),
        open_index=functools.partial(Index.open, model=backbone),
        on_published=lambda: say(event="published"),
    )
    library.start()
    entries = [(entry.name, entry.state) for entry in library.entries("default")]
    jobs = [(job.id, job.state) for job in library.jobs()]
    say(event="started", entries=entries, jobs=jobs)
    for line in sys.stdin:
        name, text = json.loads(line)
        with tempfile.SpooledTemporaryFile() as file:
            file.write(text.encode())
            say(event="kept", job=library.add("default", "lane", [UploadedFile(name, file)]).id)
    library.close()


if __name__ == "__main__":
    main()
