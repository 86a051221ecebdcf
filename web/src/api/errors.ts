// What can go wrong between the page and its server, in three kinds a reader can act on.

/** The server answered, and refused. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
    /** When the server says to try again. */
    readonly retryAfterSeconds: number | null = null,
  ) {
    super(message);
    this.name = "Refusal";
  }
}

/** No answer at all: the server is gone, or the network is. */
export class Unreachable extends Error {
  constructor() {
    super("The server does not answer");
    this.name = "Unreachable";
  }
}

/** The answer began and did not end. */
export class BrokenStream extends Error {
  constructor(
    message = "The connection broke before the answer was complete; what came so far is kept",
  ) {
    super(message);
    this.name = "BrokenStream";
  }
}

interface ErrorBody {
  error?: { message?: unknown; code?: unknown };
}

/** A refusal from a reply's parts; bodies that are not the server's own still get a sentence. */
export function refusal(status: number, body: string, retryAfter: string | null): Refusal {
  let message = `The server answered with status ${status}`;
  let code: string | null = null;
  try {
    const error = (JSON.parse(body) as ErrorBody).error;
    if (typeof error?.message === "string" && error.message) message = error.message;
    if (typeof error?.code === "string") code = error.code;
  } catch {
    // A proxy's error page, say: the status is what there is to tell.
  }
  return new Refusal(status, message, code, seconds(retryAfter));
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function seconds(retryAfter: string | null): number | null {
  if (retryAfter === null || retryAfter.trim() === "") return null;
  const value = Number(retryAfter);
  return Number.isFinite(value) && value >= 0 ? Math.ceil(value) : null;
}
