// What a screen reader is told of a growing answer: whole sentences, not tokens.

/** How much of the text may be read out: up to the last sentence's end, or all when it is done. */
export function spokenLength(text: string, done: boolean): number {
  if (done) return text.length;
  let end = 0;
  for (const match of text.matchAll(/[.!?…؟]["'”’)\]]*\s|[。！？]|\n/gu)) {
    end = match.index + match[0].length;
  }
  return end;
}
