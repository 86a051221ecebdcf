// The store: what KV is kept, where, and how often it was of use. Renewed while somebody looks.

import type { VNode } from "preact";
import { useCallback, useId, useState } from "preact/hooks";
import { messageOf } from "../api/errors";
import type { StoreState, Tier } from "../api/types";
import { usePolling } from "../state/polling";
import { useSession } from "../state/session";
import { bytes, count, counted, percent } from "./format";
import { Note, sentence } from "./notices";
import { ReuseBar } from "./reuse-bar";

const RENEW_MS = 3_000;

export function StoreView(): VNode {
  const { server } = useSession();
  const [store, setStore] = useState<StoreState | null>(null);
  const [error, setError] = useState<string | null>(null);
  const read = useCallback(async () => {
    try {
      setStore(await server.store());
      setError(null);
    } catch (problem) {
      setError(messageOf(problem));
    }
  }, [server]);
  usePolling(read, RENEW_MS);

  return (
    <div class="store">
      <h1>The store</h1>
      <p class="lead">KV that is kept, so that nothing has to be computed twice.</p>
      {error !== null && <Note kind="error">{sentence(error)}</Note>}
      {store && (
        <>
          <Headline store={store} />
          <section aria-labelledby="store-reuse">
            <h2 id="store-reuse">Prompts to the model alone</h2>
            {store.prompts === 0 ? (
              <p class="aside">
                None yet. They fill these tiers, prompt by prompt; questions to an index take its
                own KV.
              </p>
            ) : (
              <ReuseBar reuse={store.reuse} label="Where the KV of these prompts came from" />
            )}
          </section>
          <section aria-labelledby="store-tiers">
            <h2 id="store-tiers">Tiers</h2>
            <div class="tiers">
              {store.tiers.map((tier) => (
                <TierView key={tier.name} tier={tier} />
              ))}
            </div>
            <p class="facts misses">{counted(store.misses, "block")} asked for and in no tier</p>
          </section>
          <IndexTable indexes={store.indexes} />
        </>
      )}
    </div>
  );
}

function Headline({ store }: { store: StoreState }): VNode {
  const looked = store.tiers.reduce((sum, { hits }) => sum + hits, store.misses);
  const figures: [string, string][] = [
    ["Tokens reused", store.prompts === 0 ? "–" : percent(store.reuse_rate)],
    ["Block hit rate", looked === 0 ? "–" : percent(store.hit_rate)],
    ["Tokens kept", count(store.tokens)],
    ["Runs", count(store.runs)],
    ["Prompts", count(store.prompts)],
  ];
  return (
    <dl class="figures large">
      {figures.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function TierView({ tier }: { tier: Tier }): VNode {
  const id = useId();
  const { name, bytes: held, budget_bytes: budget, blocks, hits } = tier;
  return (
    <div class="tier">
      <h3 id={id}>{name}</h3>
      <span class="tier-bytes">
        {bytes(held)}
        {budget !== null && <span class="aside"> of {bytes(budget)}</span>}
      </span>
      {budget !== null && budget > 0 && (
        <meter aria-labelledby={id} min={0} max={budget} value={held}>
          {percent(held / budget)}
        </meter>
      )}
      <p class="facts">
        {counted(blocks, "block")} · {counted(hits, "hit")}
      </p>
    </div>
  );
}

function IndexTable({ indexes }: { indexes: StoreState["indexes"] }): VNode | null {
  if (indexes.length === 0) return null;
  return (
    <section aria-labelledby="store-indexes">
      <h2 id="store-indexes">Indexes</h2>
      <table>
        <thead>
          <tr>
            <th scope="col">Index</th>
            <th scope="col" class="number">
              Documents
            </th>
            <th scope="col" class="number">
              Chunks
            </th>
            <th scope="col" class="number">
              KV
            </th>
          </tr>
        </thead>
        <tbody>
          {indexes.map((index) => (
            <tr key={index.id}>
              <th scope="row">{index.id}</th>
              <td class="number">{count(index.documents)}</td>
              <td class="number">{count(index.chunks)}</td>
              <td class="number">{bytes(index.kv_bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
