// Uploading: files picked or dropped, sent, and then indexed, each step with its progress.

import type { VNode } from "preact";
import { useId, useRef, useState } from "preact/hooks";
import { isAbort, messageOf } from "../api/errors";
import type { Job, Status } from "../api/types";
import { droppedFiles, upload, type NamedFile } from "../api/upload";
import { useJob } from "../state/job";
import { useSession } from "../state/session";
import { bytes, counted } from "./format";
import { Tray } from "./icons";
import { JobProgress, Progress } from "./job-progress";
import { Note, sentence } from "./notices";

interface Sending {
  id: number;
  label: string;
  sent: number;
  total: number;
  job: Job | null;
  error: string | null;
  controller: AbortController;
}

/** @param onIndexed called whenever a job of these uploads has ended. */
export function Uploader({ index, onIndexed }: { index: string; onIndexed?: () => void }): VNode {
  const { server, refresh, status } = useSession();
  const [sendings, setSendings] = useState<Sending[]>([]);
  const [over, setOver] = useState(false);
  const next = useRef(1);
  const picker = useId();

  const change = (id: number, changes: Partial<Sending>) =>
    setSendings((all) => all.map((each) => (each.id === id ? { ...each, ...changes } : each)));

  const send = async (files: NamedFile[]) => {
    if (files.length === 0) return;
    const id = next.current++;
    const controller = new AbortController();
    const total = files.reduce((sum, { file }) => sum + file.size, 0);
    const label = files.length === 1 ? (files[0]?.name ?? "") : counted(files.length, "file");
    const error = status ? refusedHere(files.length, total, status.limits) : null;
    const sending = { id, label, sent: 0, total, job: null, error, controller };
    setSendings((all) => [sending, ...all]);
    if (error !== null) return;
    try {
      const tell = (sent: number, of: number) => change(id, { sent, total: of });
      const job = await upload(server, index, files, tell, controller.signal);
      change(id, { job });
      await refresh();
    } catch (error) {
      if (isAbort(error)) setSendings((all) => all.filter((each) => each.id !== id));
      else change(id, { error: messageOf(error) });
    }
  };

  return (
    <div class="uploader">
      <div
        class={over ? "drop over" : "drop"}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          if (event.dataTransfer) void droppedFiles(event.dataTransfer).then(send);
        }}
      >
        <Tray />
        <p>
          <label for={picker}>Choose files</label>
          <input
            id={picker}
            class="hidden"
            type="file"
            multiple
            onChange={(event) => {
              const input = event.currentTarget;
              const files = [...(input.files ?? [])];
              void send(files.map((file) => ({ name: file.name, file })));
              // So that the same file can be chosen again.
              input.value = "";
            }}
          />{" "}
          or drop them here
        </p>
        <p class="aside">Text, Markdown, HTML, PDF, Word, JSON Lines; folders, too, when dropped</p>
      </div>
      <div aria-live="polite">
        {sendings.map((sending) => (
          <SendingView
            key={sending.id}
            sending={sending}
            onOver={() => {
              void refresh();
              onIndexed?.();
            }}
          />
        ))}
      </div>
    </div>
  );
}

/** Why an upload need not be tried: a server that refuses early often cannot say so any more. */
function refusedHere(files: number, total: number, limits: Status["limits"]): string | null {
  if (files > limits.max_files) {
    return `These are ${counted(files, "file")}; the server takes ${limits.max_files} at a time`;
  }
  if (total > limits.max_upload_bytes) {
    const most = bytes(limits.max_upload_bytes);
    return `These files have ${bytes(total)}; the server takes ${most} at a time`;
  }
  return null;
}

function SendingView({ sending, onOver }: { sending: Sending; onOver: () => void }): VNode {
  const { server } = useSession();
  const job = useJob(server, sending.job, onOver);
  const { label, sent, total, error } = sending;
  return (
    <section class="sending" aria-label={`Upload of ${label}`}>
      <h4 dir="auto">{label}</h4>
      {error !== null ? (
        <Note kind="error">{sentence(error)}</Note>
      ) : job ? (
        <JobProgress job={job} />
      ) : (
        <div class="sending-row">
          <Progress
            label={sent < total ? "Sending" : "Reading"}
            done={sent}
            total={sent < total ? total : 0}
            detail={sent < total ? `${bytes(sent)} of ${bytes(total)}` : ""}
          />
          <button type="button" class="quiet" onClick={() => sending.controller.abort()}>
            Cancel
          </button>
        </div>
      )}
    </section>
  );
}
