// The documents of an index, a page at a time.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isAbort, messageOf } from "../api/errors";
import type { DocumentEntry } from "../api/types";
import { useSession } from "../state/session";
import { count } from "./format";
import { Bin } from "./icons";
import { Note, sentence } from "./notices";

interface Props {
  index: string;
  /** A new number has the list read anew. */
  generation: number;
  writable: boolean;
  onRemove: (document: string) => void;
}

export function DocumentTable({ index, generation, writable, onRemove }: Props): VNode {
  const { server } = useSession();
  const [documents, setDocuments] = useState<DocumentEntry[]>([]);
  const [more, setMore] = useState(false);
  const [error, setError] = useState<string | null>(null);

  const fail = (problem: unknown) => {
    if (!isAbort(problem)) setError(messageOf(problem));
  };
  useEffect(() => {
    let left = false;
    server.documents(index, null).then((page) => {
      if (left) return;
      setDocuments(page.data);
      setMore(page.has_more ?? false);
      setError(null);
    }, fail);
    return () => {
      left = true;
    };
  }, [server, index, generation]);

  const readMore = () => {
    server.documents(index, documents.at(-1)?.id ?? null).then((page) => {
      setDocuments((before) => [...before, ...page.data]);
      setMore(page.has_more ?? false);
    }, fail);
  };

  return (
    <>
      {error !== null && <Note kind="error">{sentence(error)}</Note>}
      {documents.length === 0 ? (
        <p class="aside">No documents yet.</p>
      ) : (
        <table class="documents">
          <caption class="hidden">Documents of {index}</caption>
          <thead>
            <tr>
              <th scope="col">Document</th>
              <th scope="col" class="number">
                Characters
              </th>
              <th scope="col" class="number">
                Chunks
              </th>
              {writable && (
                <th scope="col">
                  <span class="hidden">Actions</span>
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {documents.map(({ id, title, characters, chunks }) => (
              <tr key={id}>
                <th scope="row">
                  <span dir="auto">{title || id}</span>
                  {title !== id && (
                    <span class="key" dir="auto">
                      {id}
                    </span>
                  )}
                </th>
                <td class="number">{count(characters)}</td>
                <td class="number">{count(chunks)}</td>
                {writable && (
                  <td>
                    <button
                      type="button"
                      class="quiet"
                      aria-label={`Remove ${id}`}
                      title={`Remove ${id}`}
                      onClick={() => onRemove(id)}
                    >
                      <Bin />
                    </button>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {more && (
        <button type="button" onClick={readMore}>
          Show more
        </button>
      )}
    </>
  );
}
