// The server's HTTP API, as the page calls it.

import { BrokenStream, isAbort, refusal, Unreachable } from "./errors";
import { serverEvents, type ServerEvent } from "./events";
import type {
  ChatChunk,
  ChatRequest,
  DocumentEntry,
  DocumentSlice,
  IndexEntry,
  Job,
  MethodEntry,
  Page,
  Status,
  StoreState,
} from "./types";

export class Server {
  /** @param key the API key at the time of a call; empty where none is needed. */
  constructor(private readonly key: () => string) {}

  status(): Promise<Status> {
    return this.json("v1/status");
  }

  async indexes(): Promise<IndexEntry[]> {
    return (await this.json<Page<IndexEntry>>("v1/indexes")).data;
  }

  async methods(): Promise<MethodEntry[]> {
    return (await this.json<Page<MethodEntry>>("v1/methods")).data;
  }

  store(): Promise<StoreState> {
    return this.json("v1/store");
  }

  documents(index: string, after: string | null): Promise<Page<DocumentEntry>> {
    const query = new URLSearchParams({ limit: "100", ...(after === null ? {} : { after }) });
    return this.json(`${indexPath(index)}/documents?${query}`);
  }

  slice(index: string, document: string, start: number, end: number): Promise<DocumentSlice> {
    return this.json(`${documentPath(index, document)}?start=${start}&end=${end}`);
  }

  createIndex(name: string): Promise<IndexEntry> {
    return this.json("v1/indexes", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ name }),
    });
  }

  async dropIndex(name: string): Promise<void> {
    await this.request(indexPath(name), { method: "DELETE" });
  }

  removeDocument(index: string, document: string): Promise<Job> {
    return this.json(documentPath(index, document), { method: "DELETE" });
  }

  /** The chunks of an answer. Ends early only by an error. */
  async *chat(request: ChatRequest, signal: AbortSignal): AsyncGenerator<ChatChunk, void, void> {
    const events = this.events("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    for await (const { data } of events) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data) as ChatChunk & { error?: { message?: string } };
      if (chunk.error) throw new BrokenStream(chunk.error.message);
      yield chunk;
    }
    throw new BrokenStream();
  }

  /** A job as it goes on, until it is done or has failed. */
  async *job(id: string, signal: AbortSignal): AsyncGenerator<Job, void, void> {
    const events = this.events(`v1/jobs/${encodeURIComponent(id)}/events`, { signal });
    for await (const { data } of events) {
      const job = JSON.parse(data) as Job;
      yield job;
      if (job.state === "done" || job.state === "failed") return;
    }
    throw new BrokenStream("The connection broke while documents were being indexed");
  }

  headers(): Record<string, string> {
    const key = this.key();
    return key ? { authorization: `Bearer ${key}` } : {};
  }

  private async *events(path: string, init: RequestInit): AsyncGenerator<ServerEvent, void, void> {
    const response = await this.request(path, init);
    if (!response.body) throw new BrokenStream();
    try {
      yield* serverEvents(response.body);
    } catch (error) {
      // The browser's own words for a lost connection say nothing to a reader.
      throw error instanceof TypeError ? new BrokenStream() : error;
    }
  }

  private async json<T>(path: string, init: RequestInit = {}): Promise<T> {
    return (await (await this.request(path, init)).json()) as T;
  }

  private async request(path: string, init: RequestInit): Promise<Response> {
    let response: Response;
    try {
      response = await fetch(path, { ...init, headers: { ...init.headers, ...this.headers() } });
    } catch (error) {
      if (isAbort(error)) throw error;
      throw new Unreachable();
    }
    if (response.ok) return response;
    const body = await response.text().catch(() => "");
    throw refusal(response.status, body, response.headers.get("retry-after"));
  }
}

export function documentsPath(index: string): string {
  return `${indexPath(index)}/documents`;
}

function indexPath(index: string): string {
  return `v1/indexes/${encodeURIComponent(index)}`;
}

/** Keys may be paths: their slashes stay, everything else is quoted. */
function documentPath(index: string, document: string): string {
  return `${documentsPath(index)}/${document.split("/").map(encodeURIComponent).join("/")}`;
}
