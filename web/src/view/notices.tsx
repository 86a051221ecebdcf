// What to say, and to offer, when something does not go well.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useId, useState } from "preact/hooks";
import { Refusal, Unreachable } from "../api/errors";
import { useSession } from "../state/session";

export function Note({
  kind,
  children,
}: {
  kind: "error" | "hint";
  children: ComponentChildren;
}): VNode {
  return (
    <div class={`note ${kind}`} role={kind === "error" ? "alert" : "note"}>
      {children}
    </div>
  );
}

/** Asks for an API key, and calls `onGiven` when there is one. */
export function KeyForm({ onGiven }: { onGiven?: () => void }): VNode {
  const { apiKey, setApiKey } = useSession();
  const [value, setValue] = useState(apiKey);
  const id = useId();
  return (
    <form
      class="key-form"
      onSubmit={(event) => {
        event.preventDefault();
        setApiKey(value);
        onGiven?.();
      }}
    >
      <label for={id}>API key</label>
      <input
        id={id}
        type="password"
        autocomplete="off"
        spellcheck={false}
        required
        value={value}
        onInput={(event) => setValue(event.currentTarget.value)}
      />
      <button type="submit" class="primary">
        Use this key
      </button>
    </form>
  );
}

/** Why a request failed, with the way out that fits. */
export function Failure({ error, onRetry }: { error: Error; onRetry: () => void }): VNode {
  if (error instanceof Refusal && error.status === 401) {
    return (
      <Note kind="error">
        <p>The server asks for a valid API key.</p>
        <KeyForm onGiven={onRetry} />
      </Note>
    );
  }
  return (
    <Note kind="error">
      <p>{explanation(error)}</p>
      <RetryButton
        seconds={error instanceof Refusal ? (error.retryAfterSeconds ?? 0) : 0}
        onRetry={onRetry}
      />
    </Note>
  );
}

function explanation(error: Error): string {
  if (error instanceof Unreachable) return "The server does not answer. Is it still running?";
  if (error instanceof Refusal && error.status === 429) {
    return "The server has as much to do as it takes on at a time.";
  }
  return sentence(error.message);
}

/** Server messages come without a final full stop; the name some begin with stays as it is. */
export function sentence(message: string): string {
  const named = /^\S+: /.test(message);
  const text = named ? message : message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function RetryButton({ seconds, onRetry }: { seconds: number; onRetry: () => void }): VNode {
  const [left, setLeft] = useState(seconds);
  useEffect(() => {
    if (left <= 0) return;
    const timer = window.setTimeout(() => setLeft(left - 1), 1000);
    return () => window.clearTimeout(timer);
  }, [left]);
  return (
    <button type="button" disabled={left > 0} onClick={onRetry}>
      {left > 0 ? `Try again in ${left} s` : "Try again"}
    </button>
  );
}
