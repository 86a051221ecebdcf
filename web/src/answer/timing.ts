// The time to the first token, cut into its stages.

import type { Facts } from "../api/types";

export interface Stage {
  name: string;
  ms: number;
}

export interface Timing {
  stages: Stage[];
  totalMs: number;
}

/** Less than this is rounding, not a stage of its own. */
const REST_MS = 0.5;

/** The stages in the order in which they happen: waiting for a slot, then the server's own. */
export function timingOf(facts: Facts | null): Timing | null {
  if (!facts?.stages_ms) return null;
  const stages = [
    { name: "queue", ms: facts.queue_ms ?? 0 },
    ...Object.entries(facts.stages_ms)
      .filter(([name]) => name !== "queue")
      .map(([name, ms]) => ({ name, ms })),
  ];
  const named = sum(stages);
  const rest = (facts.ttft_ms ?? 0) - named;
  if (rest > REST_MS) stages.push({ name: "other", ms: rest });
  return { stages, totalMs: sum(stages) };
}

/** How many times sooner the first came: below 1 where it came later. */
export function timesSooner(first: Timing, second: Timing): number | null {
  return first.totalMs > 0 && second.totalMs > 0 ? second.totalMs / first.totalMs : null;
}

function sum(stages: Stage[]): number {
  return stages.reduce((total, { ms }) => total + ms, 0);
}
