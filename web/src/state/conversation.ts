// The conversation: turns, each a question with one answer, or two to compare.

import { useCallback, useRef, useState } from "preact/hooks";
import { asked, complete, failed, isRunning, stopped, withChunk } from "../answer/answer";
import type { Answer } from "../answer/answer";
import { isAbort } from "../api/errors";
import type { Server } from "../api/server";
import type { ChatMessage, ChatRequest } from "../api/types";
import type { Settings } from "./settings";

export const BASELINE = "standard_rag";
const INDEX_MODEL = "coinrag/";

export interface Turn {
  id: number;
  question: string;
  /** The one asked for, then the baseline's if they are compared. */
  answers: Answer[];
  /** Whether a second answer is to come. */
  compared: ChatRequest | null;
}

export interface Conversation {
  turns: Turn[];
  running: boolean;
  ask(question: string, settings: Settings & { target: string }): void;
  stop(): void;
  /** Ask the same once more, in the place of an answer that failed. */
  retry(turn: number, slot: number): void;
  clear(): void;
}

/** The index a model id stands for; null for the backbone. */
export function indexOf(model: string): string | null {
  return model.startsWith(INDEX_MODEL) ? model.slice(INDEX_MODEL.length) : null;
}

export function modelOf(index: string): string {
  return INDEX_MODEL + index;
}

/** Earlier turns as messages; what was never answered says nothing to the model. */
export function messagesOf(turns: Turn[], question: string): ChatMessage[] {
  const earlier = turns.flatMap(({ question: said, answers }): ChatMessage[] => {
    const answer = answers[0]?.text.trim();
    if (!answer) return [];
    return [
      { role: "user", content: said },
      { role: "assistant", content: answer },
    ];
  });
  return [...earlier, { role: "user", content: question }];
}

/** The request for an answer, and the one it is compared with. */
export function requestsFor(
  messages: ChatMessage[],
  settings: Settings & { target: string },
): [ChatRequest, ChatRequest | null] {
  const { target, method, kChunks, kNuggets, maxTokens, compare } = settings;
  const plain: ChatRequest = {
    model: target,
    messages,
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
  };
  if (indexOf(target) === null) return [plain, compare ? { ...plain, reuse: "none" } : null];
  const retrieved = { ...plain, ...(kChunks === null ? {} : { k_chunks: kChunks }) };
  const main = {
    ...retrieved,
    ...(method === null ? {} : { method }),
    ...(kNuggets === null ? {} : { k_nuggets: kNuggets }),
  };
  return [main, compare && method !== BASELINE ? { ...retrieved, method: BASELINE } : null];
}

export function useConversation(server: Server): Conversation {
  const [turns, setTurns] = useState<Turn[]>([]);
  const next = useRef(1);
  const current = useRef<AbortController | null>(null);

  const put = useCallback((id: number, slot: number, change: (before: Answer) => Answer) => {
    setTurns((all) =>
      all.map((turn) =>
        turn.id === id
          ? { ...turn, answers: turn.answers.map((a, n) => (n === slot ? change(a) : a)) }
          : turn,
      ),
    );
  }, []);

  const run = useCallback(
    async (id: number, slot: number, request: ChatRequest, signal: AbortSignal) => {
      setTurns((all) => all.map((turn) => (turn.id === id ? began(turn, slot, request) : turn)));
      try {
        for await (const chunk of server.chat(request, signal)) {
          put(id, slot, (before) => withChunk(before, chunk, performance.now()));
        }
        put(id, slot, complete);
        return true;
      } catch (error) {
        put(id, slot, (before) =>
          isAbort(error) || signal.aborted ? stopped(before) : failed(before, asError(error)),
        );
        return false;
      }
    },
    [server, put],
  );

  /** One after the other: two prompts at a time would slow each other and spoil the comparison. */
  const runAll = useCallback(
    async (id: number, main: [slot: number, request: ChatRequest], then: ChatRequest | null) => {
      const controller = new AbortController();
      current.current = controller;
      const whole = await run(id, ...main, controller.signal);
      if (whole && then) await run(id, 1, then, controller.signal);
      if (current.current === controller) current.current = null;
    },
    [run],
  );

  const running = turns.some(({ answers }) => answers.some(isRunning));

  const ask = (question: string, settings: Settings & { target: string }) => {
    if (running) return;
    const [request, compared] = requestsFor(messagesOf(turns, question), settings);
    const id = next.current++;
    setTurns((all) => [...all, { id, question, answers: [], compared }]);
    void runAll(id, [0, request], compared);
  };
  const retry = (id: number, slot: number) => {
    const turn = turns.find((each) => each.id === id);
    const answer = turn?.answers[slot];
    if (running || !turn || !answer) return;
    const missing = slot === 0 && turn.answers.length === 1 ? turn.compared : null;
    void runAll(id, [slot, answer.request], missing);
  };
  const stop = () => current.current?.abort();
  const clear = () => {
    stop();
    setTurns([]);
  };
  return { turns, running, ask, stop, retry, clear };
}

function began(turn: Turn, slot: number, request: ChatRequest): Turn {
  const answers = [...turn.answers];
  answers[slot] = asked(request, performance.now());
  return { ...turn, answers };
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
