// Evidence: the chunks an answer was made from, with the places in them highlighted.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { chunkRuns, type CitedChunk, type Place } from "../answer/places";
import { useSession } from "../state/session";
import { citationId, goTo, placeId } from "./anchors";
import { counted } from "./format";

const BEST_CITED = "mark:has(button)";
/** Room above the best place, for a line of what stands before it. */
const ABOVE_PX = 36;

interface Props {
  index: string;
  /** Of the answer, for the way back. */
  id: string;
  chunks: CitedChunk[];
}

export function EvidenceList({ index, id, chunks }: Props): VNode {
  const pieces = chunks.reduce((total, { places }) => total + places.length, 0);
  const whole = chunks.every((chunk) => wholePlace(chunk) !== undefined);
  return (
    <>
      <h3>
        Evidence{" "}
        <span class="aside">
          {whole ? "" : `${counted(pieces, "nugget")} in `}
          {counted(chunks.length, "chunk")}
        </span>
      </h3>
      {chunks.map((chunk, rank) => (
        <ChunkView
          key={`${chunk.document} ${chunk.chunk}`}
          index={index}
          id={id}
          chunk={chunk}
          best={rank === 0}
        />
      ))}
    </>
  );
}

function ChunkView({
  index,
  id,
  chunk,
  best,
}: {
  index: string;
  id: string;
  chunk: CitedChunk;
  best: boolean;
}): VNode {
  const text = useChunkText(index, chunk);
  const runs = useMemo(() => chunkRuns(text ?? "", chunk), [text, chunk]);
  const cited = new Set(
    chunk.places.filter(({ supports }) => supports.length > 0).map(({ number }) => number),
  );
  const [open, setOpen] = useState(best);
  useEffect(() => {
    if (cited.size > 0) setOpen(true);
  }, [cited.size]);
  const whole = wholePlace(chunk) !== undefined;
  const box = useRef<HTMLParagraphElement>(null);
  useEffect(() => {
    // A chunk is longer than its window: show the part that matters most.
    const best = box.current?.querySelector<HTMLElement>(cited.size > 0 ? BEST_CITED : "mark");
    if (open && box.current && best && !whole) box.current.scrollTop = best.offsetTop - ABOVE_PX;
  }, [open, text, cited.size]);
  const whereabouts = `chunk ${chunk.chunk + 1} of ${chunk.document}`;

  return (
    <details class="chunk" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span class="chunk-title" dir="auto">
          {chunk.title || chunk.document}
        </span>
        <span class="chunk-facts">
          <span class="key">{chunk.document}</span>, chunk {chunk.chunk + 1} · similarity{" "}
          {chunk.score.toFixed(2)}
        </span>
      </summary>
      {text === null ? (
        <p class="pending">Reading the chunk</p>
      ) : (
        <p
          class="chunk-text"
          ref={box}
          dir="auto"
          tabIndex={0}
          role="region"
          aria-label={`Text of ${whereabouts}`}
        >
          {runs.map((run, n) => {
            if (run.covers.length === 0) return run.text;
            return (
              <mark key={n} class={whole ? "whole" : undefined} dir={whole ? undefined : "auto"}>
                {run.opens.map((each) => (
                  <PlaceNumber key={each} id={id} number={each} cited={cited.has(each)} />
                ))}
                {run.text}
              </mark>
            );
          })}
        </p>
      )}
    </details>
  );
}

/** The number of a place; where the answer cites it, a citation leads here and this leads back. */
function PlaceNumber({ id, number, cited }: { id: string; number: number; cited: boolean }): VNode {
  if (!cited) return <span class="place-number">{number}</span>;
  return (
    <button
      type="button"
      class="place-number"
      id={placeId(id, number)}
      aria-label={`Evidence ${number}, back to the answer`}
      onClick={() => goTo(citationId(id, number))}
    >
      {number}
    </button>
  );
}

/** A chunk's text; without it (the document is gone, say) the quotes that came with the answer. */
function useChunkText(index: string, chunk: CitedChunk): string | null {
  const { server } = useSession();
  const whole = wholePlace(chunk);
  const [text, setText] = useState<string | null>(whole?.quote ?? null);
  useEffect(() => {
    if (whole) return;
    let left = false;
    server.slice(index, chunk.document, chunk.start, chunk.end).then(
      (slice) => {
        if (!left) setText(slice.text);
      },
      () => {
        if (!left) setText(quotesOf(chunk));
      },
    );
    return () => {
      left = true;
    };
  }, [server, index, chunk.document, chunk.start, chunk.end]);
  return text;
}

/** The place that is the chunk itself, where a method took chunks as they are. */
function wholePlace(chunk: CitedChunk): Place | undefined {
  return chunk.places.find(({ start, end }) => start <= chunk.start && end >= chunk.end);
}

/** Quotes at their own places, blanks between them: offsets stay what they were. */
function quotesOf(chunk: CitedChunk): string {
  const points = Array.from({ length: Math.max(0, chunk.end - chunk.start) }, () => " ");
  for (const { start, quote } of chunk.places) {
    [...quote].forEach((point, n) => {
      points[start - chunk.start + n] = point;
    });
  }
  return points.join("").trimEnd();
}
