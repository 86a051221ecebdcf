// A turn: the question, its answer or two, the time to their first tokens, and the evidence.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { chunksOf, placesOf } from "../answer/places";
import { isRunning, type Answer } from "../answer/answer";
import { indexOf, type Turn } from "../state/conversation";
import { AnswerText } from "./answer-text";
import { EvidenceList } from "./evidence";
import { FactsLine } from "./facts-line";
import { Failure } from "./notices";
import { ReuseBar } from "./reuse-bar";
import { TimingPanel, type TimedAnswer } from "./timing";

interface Props {
  turn: Turn;
  newest: boolean;
  /** Whether anything is being answered. */
  busy: boolean;
  onRetry: (slot: number) => void;
}

export function TurnView({ turn, newest, busy, onRetry }: Props): VNode {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    if (newest) heading.current?.scrollIntoView({ block: "start" });
  }, []);
  const { answers, question } = turn;
  const asked = answers[0]?.facts?.question;
  const condensed = asked !== undefined && asked.trim() !== question.trim() ? asked : null;
  const pair = turn.compared !== null;
  const waiting = pair && answers.length === 1 && answers[0] && isRunning(answers[0]);
  const timed = answers.map((answer): TimedAnswer => ({ name: nameOf(answer), answer }));

  return (
    <article class={pair ? "turn pair" : "turn"} aria-labelledby={`turn-${turn.id}`}>
      <header>
        <h2 id={`turn-${turn.id}`} ref={heading} dir="auto">
          {question}
        </h2>
        {condensed !== null && (
          <p class="condensed">
            Asked as <q dir="auto">{condensed}</q>
          </p>
        )}
      </header>
      {answers.map((answer, slot) => (
        <AnswerColumn
          key={slot}
          id={`turn-${turn.id}-${slot}`}
          answer={answer}
          slot={slot}
          named={pair}
          busy={busy}
          onRetry={() => onRetry(slot)}
        />
      ))}
      {waiting && (
        <section class="answer slot-1">
          <h3>{turn.compared?.method ?? "without reuse"}</h3>
          <p class="pending">
            Asked when the first answer is complete, so that neither slows the other.
          </p>
        </section>
      )}
      <TimingPanel answers={timed} />
      {answers.map((answer, slot) => (
        <EvidenceColumn
          key={slot}
          id={`turn-${turn.id}-${slot}`}
          answer={answer}
          slot={slot}
          named={pair}
        />
      ))}
    </article>
  );
}

function nameOf({ facts, request }: Answer): string {
  if (indexOf(request.model) !== null) return facts?.method ?? request.method ?? "coinrag";
  return request.reuse === "none" ? "without reuse" : "with reuse";
}

interface ColumnProps {
  id: string;
  answer: Answer;
  slot: number;
  /** Whether there is another answer to tell it from. */
  named: boolean;
}

function AnswerColumn({
  id,
  answer,
  slot,
  named,
  busy,
  onRetry,
}: ColumnProps & { busy: boolean; onRetry: () => void }): VNode {
  const places = useMemo(() => placesOf(answer.annotations), [answer.annotations]);
  const name = nameOf(answer);
  const reuse = answer.facts?.reuse;
  return (
    <section class={`answer slot-${slot}`} aria-label={named ? `Answer, ${name}` : "Answer"}>
      {named && <h3>{name}</h3>}
      {answer.phase !== "refused" && <AnswerText id={id} answer={answer} places={places} />}
      {answer.phase === "stopped" && <p class="ended">Stopped.</p>}
      {answer.finish === "length" && (
        <p class="ended">Ended by the limit of tokens; the settings can allow more.</p>
      )}
      {answer.error && !busy && <Failure error={answer.error} onRetry={onRetry} />}
      <FactsLine answer={answer} />
      {reuse && <ReuseBar reuse={reuse} label="Where the prompt's KV came from" />}
    </section>
  );
}

function EvidenceColumn({ id, answer, slot, named }: ColumnProps): VNode | null {
  const chunks = useMemo(() => chunksOf(placesOf(answer.annotations)), [answer.annotations]);
  const index = indexOf(answer.request.model);
  if (index === null || chunks.length === 0) return null;
  const label = named ? `Evidence, ${nameOf(answer)}` : "Evidence";
  return (
    <section class={`evidence slot-${slot}`} aria-label={label}>
      <EvidenceList index={index} id={id} chunks={chunks} />
    </section>
  );
}
