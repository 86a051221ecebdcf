// How far an indexing job has come, what it left out, and how it ended.

import type { VNode } from "preact";
import { useId } from "preact/hooks";
import type { Job } from "../api/types";
import { count, counted } from "./format";
import { Note, sentence } from "./notices";

export function JobProgress({ job }: { job: Job }): VNode {
  return (
    <div class="job">
      {job.state === "failed" ? (
        <Note kind="error">{sentence(job.error ?? "Indexing failed")}</Note>
      ) : (
        <Progress
          label={labelOf(job)}
          done={job.state === "done" ? 1 : job.done}
          total={job.state === "done" ? 1 : job.total}
          detail={
            job.state === "running" && job.total > 0
              ? `${count(job.done)} of ${count(job.total)}`
              : ""
          }
        />
      )}
      {job.skipped.length > 0 && (
        <div class="skipped">
          <p>{counted(job.skipped.length, "file")} left out:</p>
          <ul>
            {job.skipped.map(({ file, reason }) => (
              <li key={file}>
                <span class="key" dir="auto">
                  {file}
                </span>
                : {reason}
              </li>
            ))}
          </ul>
        </div>
      )}
    </div>
  );
}

function labelOf(job: Job): string {
  if (job.state === "waiting") return "Waiting for its turn";
  if (job.state === "done") return job.kind === "remove" ? "Removed" : "Ready to be asked";
  const stage = job.stage || "starting";
  return stage.charAt(0).toUpperCase() + stage.slice(1);
}

interface ProgressProps {
  label: string;
  done: number;
  /** 0 where nobody knows yet. */
  total: number;
  detail: string;
}

export function Progress({ label, done, total, detail }: ProgressProps): VNode {
  const id = useId();
  return (
    <div class="progress">
      <span id={id}>{label}</span> <span class="progress-detail">{detail}</span>
      <progress aria-labelledby={id} {...(total > 0 ? { value: done, max: total } : {})} />
    </div>
  );
}
