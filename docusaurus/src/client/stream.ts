/** Client of the gateway: yields the server-sent events as they arrive, and one outcome at the end. */

const PATIENCE_MS = 20_000; // the engine promises 5 s; the rest is for slow networks
const EVENTS = "text/event-stream";

export interface Place {
  section: string;
  chapter: string;
  url: string;
}

export interface Citation extends Place {
  n: number;
  page: string;
  excerpt: string;
}

export interface Sentence {
  text: string;
  citations: Citation[];
}

export interface Answer {
  query_id: string;
  outcome: "answered" | "refused";
  reason: string | null;
  answer: string;
  citations: Citation[];
  confidence_score: number | null;
  confidence_level: "high" | "medium" | "low" | null;
  model_used: string | null;
  nearest: Place[];
}

const ENGINE_KINDS = [
  "validation", "auth", "rate_limit", "network", "database", "llm", "timeout", "audit", "unknown",
] as const;

export type ProblemKind = (typeof ENGINE_KINDS)[number] | "offline" | "unreachable" | "cut" | "late" | "unreadable";

export interface Problem {
  outcome: "failed";
  kind: ProblemKind;
  detail?: string;
  retryable: boolean;
  waitS?: number;
  requestId?: string;
}

export interface Question {
  query: string;
  selected_text: string | null;
}

export interface Feedback {
  helpful: boolean;
  reason?: Complaint;
}

export const COMPLAINTS = ["wrong", "beside_the_point", "incomplete", "outdated", "other"] as const;
export type Complaint = (typeof COMPLAINTS)[number];

export interface Hearing {
  sources(places: Place[]): void;
  sentence(sentence: Sentence): void;
}

/** Never throws. Only a complete answer, with the engine's last event, counts as an answer. */
export async function ask(path: string, question: Question, hearing: Hearing, left: AbortSignal): Promise<Answer | Problem> {
  const late = AbortSignal.timeout(PATIENCE_MS);
  let response: Response | undefined;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: `${EVENTS}, application/json;q=0.5` },
      body: JSON.stringify(question),
      signal: eitherOf(left, late),
    });
    return await outcomeOf(response, hearing);
  } catch {
    return failed(late.aborted ? "late" : response ? "cut" : navigator.onLine ? "unreachable" : "offline", true);
  }
}

/** Whether the feedback is on record. */
export async function judge(path: string, said: Feedback & { query_id: string }): Promise<boolean> {
  const headers = { "Content-Type": "application/json" };
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const sent = fetch(`${path}&feedback=1`, { method: "POST", headers, body: JSON.stringify(said), signal });
  return sent.then(({ ok }) => ok, () => false);
}

/** A replacement for AbortSignal.any, which older browsers lack. */
function eitherOf(...signals: AbortSignal[]): AbortSignal {
  const controller = new AbortController();
  for (const signal of signals) {
    if (signal.aborted) controller.abort();
    else signal.addEventListener("abort", () => controller.abort(), { once: true });
  }
  return controller.signal;
}

async function outcomeOf(response: Response, hearing: Hearing): Promise<Answer | Problem> {
  if (response.ok && response.headers.get("Content-Type")?.startsWith(EVENTS)) return lastEvent(response, hearing);
  const text = await response.text();
  const body = parsed(text);
  return response.ok ? answerOf(body) : problemOf(body, response);
}

async function lastEvent(response: Response, hearing: Hearing): Promise<Answer | Problem> {
  for await (const { name, data } of events(response.body!)) {
    const body = parsed(data);
    if (name === "done") return answerOf(body);
    if (name === "error") return problemOf(body);
    if (name === "sources" && Array.isArray(body?.sources)) hearing.sources(body.sources);
    if (name === "sentence" && typeof body?.text === "string") hearing.sentence({ citations: [], ...body });
  }
  return failed("cut", true);
}

/** Server-sent events, cut anywhere by the network: also in a line end or in the bytes of one character. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<{ name: string; data: string }> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
      rest = blocks.pop()!;
      yield* blocks.map(event).filter(({ data }) => data);
    }
  } finally {
    reader.cancel().catch(() => undefined); // who has heard the last word keeps no connection open
  }
}

function event(block: string): { name: string; data: string } {
  const fields = block.split(/\r?\n/).map((line) => /^(\w+): ?(.*)$/.exec(line));
  const valuesOf = (name: string) => fields.filter((field) => field?.[1] === name).map((field) => field![2]);
  return { name: valuesOf("event").at(-1) ?? "message", data: valuesOf("data").join("\n") };
}

function answerOf(body: any): Answer | Problem {
  const isAnswer = typeof body?.answer === "string" && ["answered", "refused"].includes(body.outcome);
  return isAnswer ? { ...body, citations: body.citations ?? [], nearest: body.nearest ?? [] } : failed("unreadable", true);
}

function problemOf(body: any, response?: Response): Problem {
  const named = ENGINE_KINDS.find((kind) => kind === body?.error_type);
  if (!named && response && !body?.error_type) return { ...unnamed(response.status), ...waitOf(response) };
  return {
    ...failed(named ?? "unknown", body?.retryable === true),
    ...(typeof body?.detail === "string" && { detail: body.user_safe_message ?? body.detail }),
    ...(typeof body?.request_id === "string" && { requestId: body.request_id }),
    ...waitOf(response),
  };
}

/** A response in another format: from a proxy in between, or from a site without a gateway. */
function unnamed(status: number): Problem {
  if (status === 429) return failed("rate_limit", true);
  if (status === 413) return failed("validation", false);
  return status >= 500 ? failed("unreachable", true) : failed("unreadable", false);
}

/** Retry-After is a number of seconds or a date. */
function waitOf(response?: Response): { waitS?: number } {
  const said = response?.headers.get("Retry-After");
  if (!said) return {};
  const waitS = Math.ceil(/^\d+$/.test(said) ? Number(said) : (Date.parse(said) - Date.now()) / 1000);
  return waitS > 0 ? { waitS } : {};
}

function failed(kind: ProblemKind, retryable: boolean): Problem {
  return { outcome: "failed", kind, retryable };
}

function parsed(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
