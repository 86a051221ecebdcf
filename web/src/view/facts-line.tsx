// The few figures under an answer: what stood before the question, what was computed live, by what.

import type { VNode } from "preact";
import { decodeRate, type Answer } from "../answer/answer";
import { count, counted } from "./format";

export function FactsLine({ answer }: { answer: Answer }): VNode | null {
  const { facts, usage } = answer;
  const rate = decodeRate(answer);
  const prompt = usage?.prompt_tokens ?? facts?.prompt_tokens;
  const figures = [
    facts?.len_tokens !== undefined && `context of ${counted(facts.len_tokens, "token")}`,
    facts?.suffix_tokens !== undefined && `${count(facts.suffix_tokens)} computed live`,
    facts?.len_tokens === undefined &&
      prompt !== undefined &&
      `prompt of ${counted(prompt, "token")}`,
    usage && `answer of ${counted(usage.completion_tokens, "token")}`,
    facts?.adapter && `adapter ${facts.adapter.name}`,
    rate !== null && `${rate.toFixed(1)} tokens a second`,
  ].filter((figure): figure is string => typeof figure === "string");
  if (figures.length === 0) return null;
  return <p class="facts">{figures.join(" · ")}</p>;
}
