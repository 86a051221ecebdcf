// The library: indexes, and the documents of the one that is chosen.

import type { VNode } from "preact";
import { useCallback, useEffect, useId, useState } from "preact/hooks";
import { messageOf } from "../api/errors";
import type { IndexEntry, Job } from "../api/types";
import { indexOf, modelOf } from "../state/conversation";
import { useJob } from "../state/job";
import { useSession } from "../state/session";
import { FIRST_INDEX } from "./ask";
import { RemovalDialog, type Removal } from "./dialogs";
import { DocumentTable } from "./document-table";
import { bytes, count, counted } from "./format";
import { JobProgress } from "./job-progress";
import { Note, sentence } from "./notices";
import { Uploader } from "./uploader";

export function DocumentsView(): VNode {
  const { indexes, settings, status } = useSession();
  const [chosen, choose] = useState(() => settings.target && indexOf(settings.target));
  const entry = indexes.find(({ id }) => id === chosen) ?? indexes[0] ?? null;

  if (!entry) {
    return (
      <section class="welcome">
        <h1>No documents yet</h1>
        {status && <Uploader index={FIRST_INDEX} />}
      </section>
    );
  }
  return (
    <div class="library">
      <aside aria-label="Indexes">
        <h2>Indexes</h2>
        <ul class="index-list">
          {indexes.map(({ id, documents, state }) => (
            <li key={id}>
              <button
                type="button"
                aria-current={id === entry.id ? "true" : undefined}
                onClick={() => choose(id)}
              >
                <span class="index-name">{id}</span>
                <span class="aside">{state === "ready" ? count(documents) : state}</span>
              </button>
            </li>
          ))}
        </ul>
        <NewIndex onMade={choose} />
      </aside>
      <IndexView key={entry.id} entry={entry} />
    </div>
  );
}

function NewIndex({ onMade }: { onMade: (name: string) => void }): VNode {
  const { server, refresh } = useSession();
  const [name, setName] = useState("");
  const [error, setError] = useState<string | null>(null);
  const id = useId();
  const make = async () => {
    try {
      const entry = await server.createIndex(name.trim());
      await refresh();
      setName("");
      setError(null);
      onMade(entry.id);
    } catch (problem) {
      setError(messageOf(problem));
    }
  };
  return (
    <form
      class="new-index"
      onSubmit={(event) => {
        event.preventDefault();
        void make();
      }}
    >
      <label for={id}>New index</label>
      <div class="field-row">
        <input
          id={id}
          required
          maxLength={64}
          pattern="[A-Za-z0-9][A-Za-z0-9._\-]*"
          title="Letters, digits, dots, dashes and underscores"
          autocomplete="off"
          spellcheck={false}
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <button type="submit">Create</button>
      </div>
      {error !== null && <Note kind="error">{sentence(error)}</Note>}
    </form>
  );
}

function IndexView({ entry }: { entry: IndexEntry }): VNode {
  const { server, refresh, choose } = useSession();
  const [removal, setRemoval] = useState<Removal | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [generation, setGeneration] = useState(0);
  const [removing, setRemoving] = useState<Job | null>(null);

  const renew = useCallback(() => setGeneration((before) => before + 1), []);
  const over = () => {
    renew();
    void refresh();
  };
  const job = useJob(server, entry.job, over);
  const removalJob = useJob(server, removing, over);
  useEffect(renew, [entry.documents]);

  const guarded = (work: Promise<unknown>) => {
    setError(null);
    work.then(refresh, (problem: unknown) => setError(messageOf(problem)));
  };
  const removeIndex = () =>
    setRemoval({
      title: "Remove this index?",
      text: `${entry.id} is deleted from the server, with ${counted(entry.documents, "document")}.`,
      action: "Remove the index",
      run: () => guarded(server.dropIndex(entry.id)),
    });
  const removeDocument = (document: string) =>
    setRemoval({
      title: "Remove this document?",
      text:
        `${document} is deleted from the index ${entry.id}.` +
        (entry.follows
          ? " A document of the folder that the index follows comes back at the server's next start."
          : ""),
      action: "Remove the document",
      run: () => guarded(server.removeDocument(entry.id, document).then(setRemoving)),
    });

  return (
    <section class="index-view" aria-labelledby="index-name">
      <header>
        <h1 id="index-name">{entry.id}</h1>
        <span class={`state ${entry.state}`}>{entry.state}</span>
        <span class="spring" />
        {entry.state === "ready" && (
          <a href="#ask" class="button" onClick={() => choose({ target: modelOf(entry.id) })}>
            Ask it
          </a>
        )}
        {entry.removable && (
          <button type="button" class="quiet" onClick={removeIndex}>
            Remove index
          </button>
        )}
      </header>
      <IndexFigures entry={entry} />
      {error !== null && <Note kind="error">{sentence(error)}</Note>}
      {entry.error !== null && <Note kind="error">{sentence(entry.error)}</Note>}
      {job && job.state !== "done" && job.id !== removalJob?.id && <JobProgress job={job} />}
      {removalJob && removalJob.state !== "done" && <JobProgress job={removalJob} />}
      {entry.writable && <Uploader index={entry.id} onIndexed={renew} />}
      <DocumentTable
        index={entry.id}
        generation={generation}
        writable={entry.writable}
        onRemove={removeDocument}
      />
      <RemovalDialog removal={removal} onClose={() => setRemoval(null)} />
    </section>
  );
}

function IndexFigures({ entry }: { entry: IndexEntry }): VNode {
  const figures: [string, string][] = [
    ["Documents", count(entry.documents)],
    ["Chunks", count(entry.chunks)],
    ["Nuggets", count(entry.nuggets)],
    ["Tokens", count(entry.tokens)],
    ["KV", bytes(entry.kv_bytes)],
  ];
  return (
    <dl class="figures">
      {figures.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
