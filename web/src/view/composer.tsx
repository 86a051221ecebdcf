// Where a question is written: what it is put to, and whether the baseline is asked, too.

import type { VNode } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { IndexEntry } from "../api/types";
import { BASELINE, indexOf, modelOf, type Conversation } from "../state/conversation";
import { useSession } from "../state/session";
import { Page, Send, Stop } from "./icons";

interface Props {
  target: string | null;
  askable: boolean;
  conversation: Conversation;
  onAsk: (question: string) => void;
}

export function Composer({ target, askable, conversation, onAsk }: Props): VNode {
  const { settings, choose } = useSession();
  const [question, setQuestion] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const id = useId();
  const { running, stop, turns, clear } = conversation;
  const ready = askable && !running && question.trim() !== "";

  useGrowingHeight(field, question);

  const send = () => {
    if (!ready) return;
    onAsk(question.trim());
    setQuestion("");
    field.current?.focus();
  };
  const index = target === null ? null : indexOf(target);
  const alone = index !== null && settings.method === BASELINE;

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label class="hidden" for={id}>
        Question
      </label>
      <textarea
        id={id}
        ref={field}
        rows={1}
        dir="auto"
        value={question}
        placeholder={index === null ? "Any prompt" : `Ask ${index}`}
        onInput={(event) => setQuestion(event.currentTarget.value)}
        onKeyDown={(event) => {
          // While an input method composes a character, Enter belongs to it.
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      <div class="composer-row">
        <TargetMenu target={target} onChoose={(chosen) => choose({ target: chosen })} />
        <label class="switch" title={comparison(index)}>
          <input
            type="checkbox"
            role="switch"
            checked={settings.compare && !alone}
            disabled={alone}
            onChange={(event) => choose({ compare: event.currentTarget.checked })}
          />
          <span class="track" aria-hidden="true" />
          <span>
            Compare
            <span class="wide-only"> {index === null ? "without reuse" : "with standard RAG"}</span>
          </span>
        </label>
        <span class="spring" />
        {turns.length > 0 && (
          <button
            type="button"
            class="quiet"
            aria-label="New conversation"
            title="New conversation"
            onClick={clear}
          >
            <Page /> <span class="wide-only">New conversation</span>
          </button>
        )}
        {running ? (
          <button type="button" class="primary round" aria-label="Stop" title="Stop" onClick={stop}>
            <Stop />
          </button>
        ) : (
          <button
            type="submit"
            class="primary round"
            aria-label="Send"
            title="Send"
            disabled={!ready}
          >
            <Send />
          </button>
        )}
      </div>
    </form>
  );
}

function comparison(index: string | null): string {
  return index === null
    ? "Ask the same again with every token computed"
    : "Ask the same by full prefill of the same chunks";
}

function TargetMenu({
  target,
  onChoose,
}: {
  target: string | null;
  onChoose: (target: string) => void;
}): VNode {
  const { indexes, status } = useSession();
  const id = useId();
  return (
    <div class="menu">
      <label for={id}>Ask</label>
      <select
        id={id}
        value={target ?? ""}
        disabled={target === null}
        onChange={(event) => onChoose(event.currentTarget.value)}
      >
        {indexes.length > 0 && (
          <optgroup label="Indexes">
            {indexes.map((entry) => (
              <option key={entry.id} value={modelOf(entry.id)}>
                {entry.id}
                {suffix(entry)}
              </option>
            ))}
          </optgroup>
        )}
        {status && (
          <optgroup label="The model alone, any prompt">
            <option value={status.model}>{status.model}</option>
          </optgroup>
        )}
      </select>
    </div>
  );
}

function suffix(entry: IndexEntry): string {
  return entry.state === "ready" ? "" : ` (${entry.state})`;
}

/** The field is as high as its text, up to the limit that the style sheet sets. */
function useGrowingHeight(field: { current: HTMLTextAreaElement | null }, text: string): void {
  useEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight + 2}px`;
  }, [text]);
}
