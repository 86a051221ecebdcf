// Files on their way to an index: only XMLHttpRequest tells how many bytes have been sent.

import { refusal, Unreachable } from "./errors";
import type { Server } from "./server";
import { documentsPath } from "./server";
import type { Job } from "./types";

export interface NamedFile {
  /** The file's path inside what was dropped or picked: the document's key. */
  name: string;
  file: File;
}

/** Send files; resolves to the job that indexes them. */
export function upload(
  server: Server,
  index: string,
  files: NamedFile[],
  onProgress: (sentBytes: number, totalBytes: number) => void,
  signal: AbortSignal,
): Promise<Job> {
  const form = new FormData();
  for (const { name, file } of files) form.append("files", file, name);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", documentsPath(index));
    for (const [name, value] of Object.entries(server.headers())) {
      request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) onProgress(event.loaded, event.total);
    };
    request.onload = () => {
      if (request.status >= 200 && request.status < 300) {
        resolve(JSON.parse(request.responseText) as Job);
      } else {
        const retryAfter = request.getResponseHeader("retry-after");
        reject(refusal(request.status, request.responseText, retryAfter));
      }
    };
    request.onerror = () => reject(new Unreachable());
    request.onabort = () => reject(new DOMException("The upload was stopped", "AbortError"));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}

/** What was dropped, folders opened. Call it in the drop handler: the list dies with it. */
export async function droppedFiles(transfer: DataTransfer): Promise<NamedFile[]> {
  const items = [...transfer.items]
    .filter((item) => item.kind === "file")
    .map((item) => ({ entry: item.webkitGetAsEntry(), file: item.getAsFile() }));
  const found: NamedFile[] = [];
  for (const { entry, file } of items) {
    if (entry) await collect(entry, found);
    // What was dragged out of another page is no entry of a file system.
    else if (file) found.push({ name: file.name, file });
  }
  return found;
}

async function collect(entry: FileSystemEntry, found: NamedFile[]): Promise<void> {
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) => {
      (entry as FileSystemFileEntry).file(resolve, reject);
    });
    found.push({ name: entry.fullPath.replace(/^\//, ""), file });
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  for (;;) {
    const batch = await new Promise<FileSystemEntry[]>((resolve, reject) => {
      reader.readEntries(resolve, reject);
    });
    if (batch.length === 0) return;
    for (const child of batch) await collect(child, found);
  }
}
