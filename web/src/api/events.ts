// Server-sent events read from a fetch: unlike EventSource, a fetch can carry an API key.

export interface ServerEvent {
  event: string;
  data: string;
}

/** The events of a body, as they come. Comments (pings) are left out. */
export async function* serverEvents(
  body: ReadableStream<Uint8Array>,
): AsyncGenerator<ServerEvent, void, void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.feed(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) return;
    }
  } finally {
    // Whoever stops listening also ends the request, so that the server stops computing.
    await reader.cancel().catch(() => undefined);
  }
}

/** Takes text in pieces cut anywhere; gives the events completed by each. */
export class EventParser {
  private rest = "";
  private event = "message";
  private data: string[] = [];

  feed(text: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    const pending = this.rest + text;
    // A CR at the very end may be the first half of CR LF.
    const whole = pending.endsWith("\r") ? pending.slice(0, -1) : pending;
    const lines = whole.split(/\r\n|\r|\n/);
    this.rest = (lines.pop() ?? "") + pending.slice(whole.length);
    for (const line of lines) {
      const event = this.line(line);
      if (event) events.push(event);
    }
    return events;
  }

  private line(line: string): ServerEvent | null {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    return null;
  }

  private dispatch(): ServerEvent | null {
    const event = { event: this.event, data: this.data.join("\n") };
    const empty = this.data.length === 0;
    this.event = "message";
    this.data = [];
    return empty ? null : event;
  }
}
