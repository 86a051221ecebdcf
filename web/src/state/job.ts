// An indexing job, followed as it goes on.

import { useEffect, useState } from "preact/hooks";
import { isAbort } from "../api/errors";
import type { Server } from "../api/server";
import type { Job } from "../api/types";

const AGAIN_MS = 2_000;

export function isOver(job: Job): boolean {
  return job.state === "done" || job.state === "failed";
}

/** The job as it is now; `onOver` is called once when it has ended. */
export function useJob(server: Server, job: Job | null, onOver: (job: Job) => void): Job | null {
  const [latest, setLatest] = useState(job);
  const id = job && !isOver(job) ? job.id : null;
  useEffect(() => {
    if (id === null) return;
    const leaving = new AbortController();
    void follow(server, id, leaving.signal, (seen) => {
      setLatest(seen);
      if (isOver(seen)) onOver(seen);
    });
    return () => leaving.abort();
  }, [server, id]);
  return job && latest?.id === job.id ? latest : job;
}

/** A lost connection is taken up again: the job goes on without its watchers. */
async function follow(
  server: Server,
  id: string,
  signal: AbortSignal,
  tell: (job: Job) => void,
): Promise<void> {
  while (!signal.aborted) {
    try {
      for await (const job of server.job(id, signal)) if (!signal.aborted) tell(job);
      return;
    } catch (error) {
      if (isAbort(error)) return;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}
