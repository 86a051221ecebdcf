// What the server's JSON looks like, as far as the page reads it.

export interface Annotation {
  type: "url_citation";
  url_citation: { url: string; title: string; start_index: number; end_index: number };
  document: string;
  title: string;
  chunk: number;
  /** Characters (code points) of the document's text. */
  start: number;
  end: number;
  quote: string;
  score: number;
  chunk_start: number;
  chunk_end: number;
}

export interface ReuseSplit {
  exact: number;
  moved: number;
  repaired: number;
  computed: number;
}

/** How an answer came to be: sent with the first chunk of a stream. */
export interface Facts {
  request_id?: string;
  ttft_ms?: number;
  queue_ms?: number;
  stages_ms?: Record<string, number>;
  prompt_tokens?: number;
  cached_tokens?: number;
  question?: string;
  method?: string;
  adapter?: { name: string; digest: string } | null;
  len_tokens?: number;
  suffix_tokens?: number;
  reuse?: ReuseSplit;
  repair?: string;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens: number } | null;
}

export interface ChatChunk {
  choices: {
    index: number;
    delta: { content?: string | null; annotations?: Annotation[] };
    finish_reason?: string | null;
  }[];
  usage?: Usage | null;
  coinkv?: Facts;
}

export interface ChatMessage {
  role: "user" | "assistant";
  content: string;
}

export interface ChatRequest {
  model: string;
  messages: ChatMessage[];
  max_tokens?: number;
  method?: string;
  k_chunks?: number;
  k_nuggets?: number;
  reuse?: "all" | "exact" | "none";
}

export interface Job {
  id: string;
  index: string;
  kind: "add" | "remove" | "docs";
  state: "waiting" | "running" | "done" | "failed";
  stage: string | null;
  done: number;
  total: number;
  documents: string[];
  error: string | null;
  skipped: { file: string; reason: string }[];
}

export interface IndexEntry {
  id: string;
  model: string;
  state: "empty" | "building" | "ready" | "failed";
  writable: boolean;
  /** Not what the server's settings say is to be served. */
  removable: boolean;
  /** A folder decides at the server's next start which documents it has. */
  follows: boolean;
  documents: number;
  chunks: number;
  nuggets: number;
  tokens: number;
  kv_bytes: number;
  job: Job | null;
  /** Why its state is `failed`. */
  error: string | null;
}

export interface DocumentEntry {
  id: string;
  title: string;
  characters: number;
  chunks: number;
}

export interface DocumentSlice {
  id: string;
  title: string;
  text: string;
  start: number;
  end: number;
  characters: number;
}

export interface Tier {
  name: string;
  bytes: number;
  budget_bytes: number | null;
  blocks: number;
  hits: number;
}

export interface StoreState {
  tiers: Tier[];
  runs: number;
  tokens: number;
  prompts: number;
  reuse: ReuseSplit;
  /** Share of the tokens of all prompts. */
  reuse_rate: number;
  /** Blocks that were asked for and in no tier. */
  misses: number;
  /** Share of the blocks that were asked for. */
  hit_rate: number;
  indexes: { id: string; documents: number; chunks: number; kv_bytes: number }[];
}

export interface MethodEntry {
  id: string;
  note: string;
  default: boolean;
}

export interface Status {
  model: string;
  version: string;
  /** False while the model is loaded; what depends on it is null. */
  ready: boolean;
  context_length: number | null;
  limits: { most_answer_tokens: number; max_upload_bytes: number; max_files: number };
}

export interface Page<T> {
  data: T[];
  has_more?: boolean;
}
