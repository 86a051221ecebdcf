// Asking: the conversation, and the place where the next question is written.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { IndexEntry } from "../api/types";
import type { Conversation } from "../state/conversation";
import { indexOf, modelOf } from "../state/conversation";
import { useJob } from "../state/job";
import { useSession } from "../state/session";
import { Composer } from "./composer";
import { bytes, counted } from "./format";
import { JobProgress } from "./job-progress";
import { Note, sentence } from "./notices";
import { TurnView } from "./turn";
import { Uploader } from "./uploader";

/** Name of the index that a first upload makes. */
export const FIRST_INDEX = "documents";

export function AskView({ conversation }: { conversation: Conversation }): VNode {
  const { connection, indexes, settings, status } = useSession();
  const { turns, running, stop } = conversation;
  const target = useTarget();

  useEffect(() => {
    if (!running) return;
    const escape = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
    };
    document.addEventListener("keydown", escape);
    return () => document.removeEventListener("keydown", escape);
  }, [running, stop]);

  const index = target === null ? null : indexOf(target);
  const entry = indexes.find(({ id }) => id === index) ?? null;
  const opening = connection === "opening" && status === null;
  const askable = target !== null && (entry === null || entry.state === "ready");

  return (
    <div class={turns.length > 0 ? "ask" : "ask fresh"}>
      {turns.length === 0 && !opening && <Welcome index={index} />}
      {turns.map((turn, n) => (
        <TurnView
          key={turn.id}
          turn={turn}
          newest={n === turns.length - 1}
          busy={running}
          onRetry={(slot) => conversation.retry(turn.id, slot)}
        />
      ))}
      <Composer
        target={target}
        askable={askable}
        conversation={conversation}
        onAsk={(question) => {
          if (target !== null) conversation.ask(question, { ...settings, target });
        }}
      />
    </div>
  );
}

/** What is asked: the reader's choice while it exists, else the first index, else the backbone. */
function useTarget(): string | null {
  const { indexes, settings, status, choose } = useSession();
  const known = [...indexes.map(({ id }) => modelOf(id)), ...(status ? [status.model] : [])];
  const chosen = known.find((id) => id === settings.target);
  const filled = indexes.find(({ state }) => state === "ready") ?? indexes[0];
  const target = chosen ?? (filled ? modelOf(filled.id) : (known[0] ?? null));
  useEffect(() => {
    // Remembered, so that an index that appears later does not change what is asked.
    if (settings.target !== null && chosen === undefined && known.length > 0) {
      choose({ target: null });
    }
  }, [settings.target, chosen, known.length]);
  return target;
}

function Welcome({ index }: { index: string | null }): VNode {
  const { indexes, server, status, refresh } = useSession();
  const entry = indexes.find(({ id }) => id === index) ?? null;
  const job = useJob(server, entry?.job ?? null, () => void refresh());
  // An upload that has begun here ends here, whatever becomes of the index meanwhile.
  const [invites, invite] = useState(false);
  const empty = status?.ready === true && (indexes.length === 0 || entry?.state === "empty");
  useEffect(() => {
    if (empty) invite(true);
  }, [empty]);

  return (
    <section class="welcome">
      <Invitation entry={entry} empty={empty} />
      {invites && <Uploader index={entry?.id ?? FIRST_INDEX} />}
      {!invites && entry?.state === "building" && job && <JobProgress job={job} />}
      {empty && (
        <p class="aside">
          Without documents you can ask the model itself, <code>{status.model}</code>.
        </p>
      )}
    </section>
  );
}

/** What can be done now, by the state of what is asked. */
function Invitation({ entry, empty }: { entry: IndexEntry | null; empty: boolean }): VNode {
  if (empty) {
    return (
      <>
        <h1>Start with a few documents</h1>
        <p>
          Their text is encoded once. Questions then read only the parts that answer, and show the
          places they come from.
        </p>
      </>
    );
  }
  if (entry === null) {
    return (
      <>
        <h1>Ask the model</h1>
        <p>Any prompt. What was computed for earlier ones is used again.</p>
      </>
    );
  }
  if (entry.state === "building") {
    return (
      <>
        <h1>{entry.id} is being encoded</h1>
        <p>Questions can be asked as soon as its first version is whole.</p>
      </>
    );
  }
  if (entry.state === "failed") {
    return (
      <>
        <h1>{entry.id} cannot be asked</h1>
        <Note kind="error">{sentence(entry.error ?? "Its last build failed")}</Note>
      </>
    );
  }
  return (
    <>
      <h1>Ask your documents</h1>
      <p>
        {counted(entry.documents, "document")} · {counted(entry.nuggets, "nugget")} ·{" "}
        {bytes(entry.kv_bytes)} of KV, encoded once
      </p>
    </>
  );
}
