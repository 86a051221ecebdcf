// Where KV came from, as a bar of four shares.

import type { VNode } from "preact";
import type { ReuseSplit } from "../api/types";
import { count } from "./format";

const KINDS = ["exact", "moved", "repaired", "computed"] as const;

export function ReuseBar({ reuse, label }: { reuse: ReuseSplit; label: string }): VNode | null {
  const total = KINDS.reduce((sum, kind) => sum + reuse[kind], 0);
  if (total === 0) return null;
  return (
    <figure class="reuse">
      <figcaption>{label}, in tokens</figcaption>
      <div class="stack" aria-hidden="true">
        {KINDS.filter((kind) => reuse[kind] > 0).map((kind) => (
          <span key={kind} class={`kind-${kind}`} style={{ flexGrow: reuse[kind] }} />
        ))}
      </div>
      <ul class="legend">
        {KINDS.map((kind) => (
          <li key={kind}>
            <span class={`swatch kind-${kind}`} aria-hidden="true" />
            {kind} <b>{count(reuse[kind])}</b>
          </li>
        ))}
      </ul>
    </figure>
  );
}
