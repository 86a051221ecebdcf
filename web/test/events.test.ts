import { describe, expect, test } from "vitest";
import { EventParser, serverEvents } from "../src/api/events";

const STREAM =
  ': ping\n\nevent: progress\ndata: {"done": 1}\n\ndata: 石膏 🌾\r\n\r\ndata: a\ndata: b\n\ndata: [DONE]\n\n';
const EVENTS = [
  { event: "progress", data: '{"done": 1}' },
  { event: "message", data: "石膏 🌾" },
  { event: "message", data: "a\nb" },
  { event: "message", data: "[DONE]" },
];

function streamOf(bytes: Uint8Array, size: number): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) {
        controller.enqueue(bytes.slice(at, at + size));
      }
      controller.close();
    },
  });
}

describe("server-sent events", () => {
  test.each([1, 2, 3, 7, 1000])("are the same cut into pieces of %i bytes", async (size) => {
    const seen = [];
    for await (const event of serverEvents(streamOf(new TextEncoder().encode(STREAM), size))) {
      seen.push(event);
    }
    expect(seen).toEqual(EVENTS);
  });

  test("that are not complete are not given", () => {
    expect(new EventParser().feed("data: half")).toEqual([]);
    expect(new EventParser().feed("data: half\n")).toEqual([]);
  });

  test("lose only one blank behind the colon", () => {
    expect(new EventParser().feed("data:  x\n\n")).toEqual([{ event: "message", data: " x" }]);
  });

  test("end the request when nobody listens any more", async () => {
    let cancelled = false;
    const endless = new ReadableStream<Uint8Array>({
      pull(controller) {
        controller.enqueue(new TextEncoder().encode("data: x\n\n"));
      },
      cancel() {
        cancelled = true;
      },
    });
    for await (const event of serverEvents(endless)) {
      expect(event.data).toBe("x");
      break;
    }
    expect(cancelled).toBe(true);
  });
});
