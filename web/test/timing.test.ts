import { expect, test } from "vitest";
import { spokenLength } from "../src/answer/spoken";
import { timesSooner, timingOf } from "../src/answer/timing";

const STAGES = { embed: 20, retrieve: 1, prefill: 79 };

test("the stages begin with the queue and keep the server's order", () => {
  const timing = timingOf({ queue_ms: 3, ttft_ms: 103, stages_ms: STAGES });
  expect(timing?.stages.map(({ name }) => name)).toEqual(["queue", "embed", "retrieve", "prefill"]);
  expect(timing?.totalMs).toBe(103);
});

test("time that no stage names is a stage of its own", () => {
  const timing = timingOf({ queue_ms: 3, ttft_ms: 110, stages_ms: STAGES });
  expect(timing?.stages.at(-1)).toEqual({ name: "other", ms: 7 });
  expect(timing?.totalMs).toBe(110);
});

test("without stages there is no bar, and no ratio without time", () => {
  expect(timingOf(null)).toBeNull();
  expect(timingOf({ ttft_ms: 4 })).toBeNull();
  const [fast, slow] = [
    { stages: [], totalMs: 100 },
    { stages: [], totalMs: 250 },
  ];
  expect(timesSooner(fast, slow)).toBe(2.5);
  expect(timesSooner({ stages: [], totalMs: 0 }, slow)).toBeNull();
});

test.each([
  ["Half a sent", 0],
  ["One. Tw", 5],
  ["It costs 3.5", 0],
  ['"Yes." he', 7],
  ["石膏。肥", 3],
  ["a\nb", 2],
])("of %j a screen reader is told %i characters before the answer ends", (text, length) => {
  expect(spokenLength(text, false)).toBe(length);
  expect(spokenLength(text, true)).toBe(text.length);
});
