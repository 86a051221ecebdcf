// Citations: which part of an answer rests on which place in a document, and the way back.

import type { Annotation } from "../api/types";

export interface Range {
  start: number;
  end: number;
}

/** A piece of evidence: a place in a document, and what it supports in the answer. */
export interface Place {
  /** From 1, best first: what a reader sees in brackets. */
  number: number;
  document: string;
  title: string;
  chunk: number;
  start: number;
  end: number;
  quote: string;
  score: number;
  chunkStart: number;
  chunkEnd: number;
  /** Ranges of the answer, in code points. */
  supports: Range[];
}

/** A chunk with the places found in it. */
export interface CitedChunk {
  document: string;
  title: string;
  chunk: number;
  start: number;
  end: number;
  score: number;
  places: Place[];
}

/** A run of text that the same places cover. */
export interface Run {
  text: string;
  /** Numbers of the places that cover it. */
  covers: number[];
  /** Of these, the ones that begin here. */
  opens: number[];
  /** Of these, the ones that end here. */
  closes: number[];
}

/** The places of an answer's annotations: one place may support several ranges. */
export function placesOf(annotations: Annotation[]): Place[] {
  const places = new Map<string, Place>();
  for (const note of annotations) {
    const key = JSON.stringify([note.document, note.start, note.end]);
    let place = places.get(key);
    if (!place) {
      place = {
        number: places.size + 1,
        document: note.document,
        title: note.title,
        chunk: note.chunk,
        start: note.start,
        end: note.end,
        quote: note.quote,
        score: note.score,
        chunkStart: note.chunk_start,
        chunkEnd: note.chunk_end,
        supports: [],
      };
      places.set(key, place);
    }
    const { start_index: start, end_index: end } = note.url_citation;
    if (end > start) place.supports.push({ start, end });
  }
  return [...places.values()];
}

/** Places by the chunk they lie in; the chunk of the best place first. */
export function chunksOf(places: Place[]): CitedChunk[] {
  const chunks = new Map<string, CitedChunk>();
  for (const place of places) {
    const key = JSON.stringify([place.document, place.chunk]);
    let chunk = chunks.get(key);
    if (!chunk) {
      chunk = {
        document: place.document,
        title: place.title,
        chunk: place.chunk,
        start: place.chunkStart,
        end: place.chunkEnd,
        score: place.score,
        places: [],
      };
      chunks.set(key, chunk);
    }
    chunk.places.push(place);
    chunk.score = Math.max(chunk.score, place.score);
  }
  return [...chunks.values()];
}

/** The answer in runs, each with the places that support it. */
export function citedRuns(answer: string, places: Place[]): Run[] {
  const spans = places.flatMap(({ number, supports }) =>
    supports.map((range) => ({ number, ...range })),
  );
  return runs(answer, spans);
}

/** A chunk's text in runs, each with the places it belongs to. */
export function chunkRuns(text: string, chunk: CitedChunk): Run[] {
  const spans = chunk.places.map(({ number, start, end }) => ({
    number,
    start: start - chunk.start,
    end: end - chunk.start,
  }));
  return runs(text, spans);
}

function runs(text: string, spans: (Range & { number: number })[]): Run[] {
  // The server counts code points, JavaScript slices UTF-16 units.
  const points = [...text];
  const inside = spans
    .map(({ number, start, end }) => ({
      number,
      start: Math.max(0, start),
      end: Math.min(points.length, end),
    }))
    .filter(({ start, end }) => start < end);
  const cuts = new Set([0, points.length, ...inside.flatMap(({ start, end }) => [start, end])]);
  const edges = [...cuts].sort((a, b) => a - b);
  return edges.slice(1).map((end, n) => {
    const start = edges[n] ?? 0;
    const covering = inside.filter((span) => span.start <= start && span.end >= end);
    return {
      text: points.slice(start, end).join(""),
      covers: numbers(covering),
      opens: numbers(covering.filter((span) => span.start === start)),
      closes: numbers(covering.filter((span) => span.end === end)),
    };
  });
}

function numbers(spans: { number: number }[]): number[] {
  return [...new Set(spans.map(({ number }) => number))].sort((a, b) => a - b);
}
