// An answer's text as it grows, with a numbered button behind each part that evidence supports.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { isRunning, type Answer } from "../answer/answer";
import { citedRuns, type Place } from "../answer/places";
import { spokenLength } from "../answer/spoken";
import { citationId, goTo, placeId } from "./anchors";

interface Props {
  id: string;
  answer: Answer;
  places: Place[];
}

export function AnswerText({ id, answer, places }: Props): VNode {
  const { text, phase } = answer;
  const runs = useMemo(() => citedRuns(text, places), [text, places]);
  const byNumber = new Map(places.map((place) => [place.number, place]));
  const anchored = new Set<number>();
  return (
    <>
      <p class={`answer-text ${phase}`} dir="auto" aria-busy={isRunning(answer)}>
        {runs.map((run, n) => (
          <span key={n} class={run.covers.length > 0 ? "cited" : undefined}>
            {run.text}
            {run.closes.map((number) => {
              const first = !anchored.has(number);
              anchored.add(number);
              return (
                <button
                  key={number}
                  type="button"
                  class="citation"
                  id={first ? citationId(id, number) : undefined}
                  aria-label={`Evidence ${number}: ${byNumber.get(number)?.title ?? ""}`}
                  onClick={() => goTo(placeId(id, number))}
                >
                  {number}
                </button>
              );
            })}
          </span>
        ))}
        {isRunning(answer) && <span class="caret" aria-hidden="true" />}
      </p>
      <Announcer text={text} done={!isRunning(answer)} />
    </>
  );
}

/** How long a finished answer stays for the screen reader, which has it on the page as well. */
const READ_OUT_MS = 5_000;

/** Reads the answer out sentence by sentence: each is added once, so none is said twice. */
function Announcer({ text, done }: { text: string; done: boolean }): VNode {
  const said = useRef<string[]>([]);
  const [over, setOver] = useState(false);
  useEffect(() => {
    setOver(false);
    if (!done) return;
    const timer = window.setTimeout(() => setOver(true), READ_OUT_MS);
    return () => window.clearTimeout(timer);
  }, [done]);
  if (!text.startsWith(said.current.join(""))) said.current = [];
  const from = said.current.join("").length;
  const end = spokenLength(text, done);
  if (end > from) said.current = [...said.current, text.slice(from, end)];
  return (
    <span class="hidden" role="log" aria-live="polite" aria-label="Answer so far">
      {!over && said.current.map((sentence, n) => <span key={n}>{sentence}</span>)}
    </span>
  );
}
