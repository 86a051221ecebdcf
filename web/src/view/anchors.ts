// The two ends of a citation, and how to get from one to the other.

export function placeId(answer: string, number: number): string {
  return `${answer}-place-${number}`;
}

export function citationId(answer: string, number: number): string {
  return `${answer}-citation-${number}`;
}

/** Scroll to an element and focus it, after whatever is folded around it has opened. */
export function goTo(id: string): void {
  const target = document.getElementById(id);
  if (!target) return;
  const folded = target.closest("details");
  if (folded) folded.open = true;
  target.scrollIntoView({ block: "center" });
  target.focus({ preventScroll: true });
}
