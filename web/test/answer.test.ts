import { describe, expect, test } from "vitest";
import { asked, complete, decodeRate, failed, withChunk } from "../src/answer/answer";
import { BrokenStream, Refusal, Unreachable } from "../src/api/errors";
import type { Annotation, ChatChunk } from "../src/api/types";

const REQUEST = { model: "coinrag/demo", messages: [] };

function piece(content: string, more: Partial<ChatChunk["choices"][0]> = {}): ChatChunk {
  return { choices: [{ index: 0, delta: { content }, ...more }] };
}

describe("an answer", () => {
  test("grows by its chunks, and keeps its facts", () => {
    let answer = asked(REQUEST, 0);
    answer = withChunk(answer, { ...piece(""), coinkv: { ttft_ms: 12 } }, 10);
    expect(answer.firstAt).toBeNull();
    answer = withChunk(answer, piece("One"), 20);
    answer = withChunk(answer, piece(" two", { finish_reason: "stop" }), 60);
    const usage = { prompt_tokens: 9, completion_tokens: 5 };
    answer = complete(withChunk(answer, { choices: [], usage }, 70));
    expect(answer).toMatchObject({ text: "One two", finish: "stop", phase: "done", usage });
    expect(answer.facts).toEqual({ ttft_ms: 12 });
    expect(decodeRate(answer)).toBeCloseTo(100);
  });

  test("takes its evidence from the last list of it", () => {
    const first = [{ document: "a" }] as Annotation[];
    const last = [{ document: "a" }, { document: "b" }] as Annotation[];
    let answer = withChunk(asked(REQUEST, 0), piece("", { delta: { annotations: first } }), 1);
    answer = withChunk(answer, piece("x"), 2);
    expect(answer.annotations).toBe(first);
    answer = withChunk(answer, piece("", { delta: { annotations: last } }), 3);
    expect(answer.annotations).toBe(last);
  });

  test("that breaks keeps its text; one that was refused is told apart", () => {
    const begun = withChunk(asked(REQUEST, 0), piece("half"), 1);
    expect(failed(begun, new BrokenStream())).toMatchObject({ phase: "broken", text: "half" });
    expect(failed(begun, new Refusal(429, "busy")).phase).toBe("refused");
    expect(failed(begun, new Unreachable()).phase).toBe("refused");
  });
});
