import { describe, expect, test } from "vitest";
import { asked, withChunk } from "../src/answer/answer";
import { indexOf, messagesOf, requestsFor, type Turn } from "../src/state/conversation";
import { DEFAULTS } from "../src/state/settings";

const MESSAGES = [{ role: "user" as const, content: "Who?" }];
const OF_INDEX = { ...DEFAULTS, target: "coinrag/demo" };

function turn(question: string, text: string): Turn {
  const chunk = { choices: [{ index: 0, delta: { content: text } }] };
  const answer = withChunk(asked({ model: "m", messages: [] }, 0), chunk, 1);
  return { id: 1, question, answers: [answer], compared: null };
}

test("earlier turns are sent, but for those that were never answered", () => {
  expect(messagesOf([turn("A?", " a "), turn("B?", "")], "C?")).toEqual([
    { role: "user", content: "A?" },
    { role: "assistant", content: "a" },
    { role: "user", content: "C?" },
  ]);
});

test("a model's name says whether an index is asked", () => {
  expect(indexOf("coinrag/law")).toBe("law");
  expect(indexOf("smollm2")).toBeNull();
});

describe("requests", () => {
  test("leave to the server what was not chosen", () => {
    expect(requestsFor(MESSAGES, OF_INDEX)).toEqual([
      { model: "coinrag/demo", messages: MESSAGES },
      null,
    ]);
  });

  test("of a comparison differ in the method, not in the chunks", () => {
    const chosen = { method: "coinrag", kChunks: 3, kNuggets: 7, maxTokens: 50, compare: true };
    const [main, compared] = requestsFor(MESSAGES, { ...OF_INDEX, ...chosen });
    expect(main).toMatchObject({ method: "coinrag", k_chunks: 3, k_nuggets: 7, max_tokens: 50 });
    expect(compared).toMatchObject({ method: "standard_rag", k_chunks: 3, max_tokens: 50 });
    expect(compared).not.toHaveProperty("k_nuggets");
  });

  test("do not compare the baseline with itself", () => {
    const settings = { ...OF_INDEX, method: "standard_rag", compare: true };
    expect(requestsFor(MESSAGES, settings)[1]).toBeNull();
  });

  test("of a prompt are compared with no reuse, and name no method", () => {
    const settings = { ...DEFAULTS, target: "smollm2", method: "coinrag", compare: true };
    expect(requestsFor(MESSAGES, settings)).toEqual([
      { model: "smollm2", messages: MESSAGES },
      { model: "smollm2", messages: MESSAGES, reuse: "none" },
    ]);
  });
});
