// One answer, from the request to its last word: a value that each chunk of the stream renews.

import { Refusal, Unreachable } from "../api/errors";
import type { Annotation, ChatChunk, ChatRequest, Facts, Usage } from "../api/types";

/**
 * `waiting` for the first token, `streaming`, then one of: `done`; `stopped` by the reader;
 * `broken` in the middle; `refused` before anything came.
 */
export type Phase = "waiting" | "streaming" | "done" | "stopped" | "broken" | "refused";

export interface Answer {
  request: ChatRequest;
  phase: Phase;
  text: string;
  annotations: Annotation[];
  facts: Facts | null;
  usage: Usage | null;
  /** `length` when a limit ended the answer. */
  finish: string | null;
  error: Error | null;
  /** Clock readings in ms: the request, the first text, the last. */
  askedAt: number;
  firstAt: number | null;
  lastAt: number | null;
}

export function asked(request: ChatRequest, now: number): Answer {
  return {
    request,
    phase: "waiting",
    text: "",
    annotations: [],
    facts: null,
    usage: null,
    finish: null,
    error: null,
    askedAt: now,
    firstAt: null,
    lastAt: null,
  };
}

export function withChunk(answer: Answer, chunk: ChatChunk, now: number): Answer {
  const choice = chunk.choices[0];
  const text = choice?.delta.content ?? "";
  return {
    ...answer,
    phase: "streaming",
    text: answer.text + text,
    // The last chunk repeats the evidence, now with the ranges of the answer it supports.
    annotations: choice?.delta.annotations ?? answer.annotations,
    facts: chunk.coinkv ? { ...answer.facts, ...chunk.coinkv } : answer.facts,
    usage: chunk.usage ?? answer.usage,
    finish: choice?.finish_reason ?? answer.finish,
    firstAt: answer.firstAt ?? (text ? now : null),
    lastAt: text ? now : answer.lastAt,
  };
}

export function complete(answer: Answer): Answer {
  return { ...answer, phase: "done" };
}

export function stopped(answer: Answer): Answer {
  return { ...answer, phase: "stopped" };
}

export function failed(answer: Answer, error: Error): Answer {
  const refused = error instanceof Refusal || error instanceof Unreachable;
  return { ...answer, phase: refused ? "refused" : "broken", error };
}

export function isRunning(answer: Answer): boolean {
  return answer.phase === "waiting" || answer.phase === "streaming";
}

/** Tokens a second behind the first; null where there is nothing to measure. */
export function decodeRate(answer: Answer): number | null {
  const { firstAt, lastAt, usage } = answer;
  if (firstAt === null || lastAt === null || !usage) return null;
  if (usage.completion_tokens < 3 || lastAt <= firstAt) return null;
  return (1000 * (usage.completion_tokens - 1)) / (lastAt - firstAt);
}
