// The time to the first token as a bar of its stages; two of them stand on one scale.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isRunning, type Answer } from "../answer/answer";
import { timesSooner, timingOf, type Timing } from "../answer/timing";
import { milliseconds, times } from "./format";

export interface TimedAnswer {
  name: string;
  answer: Answer;
}

/** From this share of the scale on, a stage has room for a boundary of its own. */
const WIDE = 0.01;
const COLOURED = new Set(["queue", "embed", "retrieve", "read", "compose", "prefill"]);

export function TimingPanel({ answers }: { answers: TimedAnswer[] }): VNode | null {
  const waiting = answers.some(({ answer }) => answer.phase === "waiting");
  const now = useClock(waiting);
  const rows = answers
    .map(({ name, answer }) => ({ name, timing: timingOf(answer.facts), answer }))
    .filter(({ timing, answer }) => timing !== null || isRunning(answer));
  if (rows.length === 0) return null;

  const elapsed = (answer: Answer) => Math.max(0, now - answer.askedAt);
  const scaleMs = Math.max(
    1,
    ...rows.map(({ timing, answer }) => timing?.totalMs ?? elapsed(answer)),
  );
  const [first, ...others] = rows;
  return (
    <section class="timing" aria-label="Time to the first token">
      <header>
        <h3>Time to the first token</h3>
        {others.length > 0 ? <Verdict rows={rows} /> : first && <Total {...first} now={now} />}
      </header>
      {rows.map((row, n) => (
        <div key={n} class="timing-row">
          {others.length > 0 && (
            <div class="timing-head">
              <span class="timing-name">{row.name}</span>
              <Total {...row} now={now} />
            </div>
          )}
          {row.timing ? (
            <StageBar timing={row.timing} scaleMs={scaleMs} />
          ) : (
            <div class="stack">
              <span class="running" style={{ width: share(elapsed(row.answer), scaleMs) }} />
            </div>
          )}
        </div>
      ))}
    </section>
  );
}

interface Row {
  timing: Timing | null;
  answer: Answer;
}

/** What the time came to, or has come to so far. */
function Total({ timing, answer, now }: Row & { now: number }): VNode {
  return <span class="timing-total">{milliseconds(timing?.totalMs ?? now - answer.askedAt)}</span>;
}

function StageBar({ timing, scaleMs }: { timing: Timing; scaleMs: number }): VNode {
  return (
    <>
      <div class="stack" aria-hidden="true">
        {timing.stages
          .filter(({ ms }) => ms > 0)
          .map(({ name, ms }, n) => (
            <span
              key={name}
              class={n > 0 && ms > WIDE * scaleMs ? `${colour(name)} wide` : colour(name)}
              style={{ width: share(ms, scaleMs) }}
            />
          ))}
      </div>
      <ul class="legend">
        {timing.stages.map(({ name, ms }) => (
          <li key={name}>
            <span class={`swatch ${colour(name)}`} aria-hidden="true" />
            {name} <b>{milliseconds(ms)}</b>
          </li>
        ))}
      </ul>
    </>
  );
}

function Verdict({ rows }: { rows: { name: string; timing: Timing | null }[] }): VNode | null {
  const [first, second] = rows;
  if (!first?.timing || !second?.timing) return null;
  const ratio = timesSooner(first.timing, second.timing);
  if (ratio === null) return null;
  return (
    <p class="verdict">
      <strong>{times(ratio >= 1 ? ratio : 1 / ratio)}</strong> {ratio >= 1 ? "sooner" : "later"}{" "}
      with {first.name} than with {second.name}
    </p>
  );
}

function colour(stage: string): string {
  return `stage-${COLOURED.has(stage) ? stage : "other"}`;
}

function share(ms: number, scaleMs: number): string {
  return `${(100 * ms) / scaleMs}%`;
}

/** A clock that ticks while something is waited for. */
function useClock(ticking: boolean): number {
  const [now, setNow] = useState(() => performance.now());
  useEffect(() => {
    if (!ticking) return;
    const timer = window.setInterval(() => setNow(performance.now()), 100);
    return () => window.clearInterval(timer);
  }, [ticking]);
  return now;
}
