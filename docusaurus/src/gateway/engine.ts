/** HTTP client of the engine: forwards one question, and returns its answer as JSON or event by event. */
import type { GatewayOptions } from "./gateway.js";
import { Failure, problemBody, readerLeft } from "./problems.js";

export interface Engine {
  address: string;
  key: string;
}

export interface Outcome {
  status: number;
  failure?: Failure;
}

interface Question {
  request: Request;
  requestId: string;
  reader: string;
  /** The body, as it goes to the engine. */
  question: string;
}

const FIRST_BYTE_MS = 7_000; // the engine promises an answer in 5 s; the rest is for the connection
const ANSWER_MS = 15_000; // from the first byte to the last; for a reader on a slow line
const BOOK_ID = /^[a-z0-9][a-z0-9-]{0,62}$/;
const EVENTS = "text/event-stream";
const PASSED_ON = [
  "Content-Type", "Retry-After", "X-Query-ID", "X-Receipt",
  "RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
];

/** The message never contains the key, because it ends up in logs. */
export function engineOf({ engine, key, book }: Pick<GatewayOptions, "engine" | "key" | "book">): Engine {
  if (!/^[\x21-\x7e]+$/.test(key)) throw new Error("The key is empty, or contains characters that no API key has.");
  if (!URL.canParse(engine) || !/^https?:\/\//i.test(engine)) {
    throw new Error("The engine's address must begin with http:// or https://.");
  }
  const base = new URL(engine);
  if (base.username || base.password || base.search || base.hash) {
    throw new Error("The engine's address must not contain a user, password, query or fragment.");
  }
  if (book !== undefined && !BOOK_ID.test(book)) throw new Error(`"${book}" is not a valid book id.`);
  const path = book === undefined ? "v1/query" : `v1/books/${book}/query`;
  return { address: `${base.href.replace(/\/+$/, "")}/${path}`, key };
}

export async function askEngine(
  engine: Engine, asked: Question, report: (outcome: Outcome) => void,
): Promise<Response> {
  const call = new Call(asked.request.signal);
  try {
    const response = await sent(engine, asked, call);
    const headers = headersOf(response, asked.requestId);
    if (response.body && typeOf(response) === EVENTS) {
      call.allow(ANSWER_MS);
      const events = wholeEvents(response, asked.requestId, call, report);
      return new Response(events, { status: response.status, headers });
    }
    const body = await response.arrayBuffer().catch((fault: unknown) => {
      throw call.failure("CutOff", fault);
    });
    call.end();
    report({ status: response.status });
    return new Response(body, { status: response.status, headers });
  } catch (fault) {
    call.giveUp();
    throw fault;
  }
}

async function sent(engine: Engine, asked: Question, call: Call): Promise<Response> {
  const response = await fetch(engine.address, {
    method: "POST",
    redirect: "manual", // the key is for the engine, not for where it may point
    signal: call.signal,
    headers: {
      "Authorization": `Bearer ${engine.key}`,
      "Content-Type": "application/json",
      "Accept": asked.request.headers.get("Accept") ?? "application/json",
      "Accept-Encoding": "identity", // a compressed stream would be held back
      "X-End-User": `anon:${asked.reader}`,
      "X-Request-ID": asked.requestId,
    },
    body: asked.question,
  }).catch((fault: unknown) => {
    throw call.failure("Unreachable", fault);
  });
  check(response);
  return response;
}

/** Readers must not see what a proxy in between says, or the engine about our key. */
function check(response: Response): void {
  const { status } = response;
  if (status === 401 || status === 403) throw new Failure("Misconfigured", { cause: `the engine says ${status}` });
  const type = typeOf(response);
  const isAnswer = status === 200 && (type === EVENTS || type === "application/json");
  const isProblem = status >= 400 && type === "application/problem+json";
  if (!isAnswer && !isProblem) throw new Failure("NoAnswer", { cause: `the engine says ${status}` });
}

function typeOf(response: Response): string {
  return (response.headers.get("Content-Type") ?? "").split(";")[0]?.trim().toLowerCase() ?? "";
}

function headersOf(response: Response, requestId: string): Headers {
  const headers = new Headers({
    "Cache-Control": "no-store, no-transform", // a proxy that compresses would hold every event back until the end
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
    "X-Request-ID": requestId,
  });
  for (const name of PASSED_ON) {
    const value = response.headers.get(name);
    if (value !== null) headers.set(name, value);
  }
  return headers;
}

/** Forwards each event as soon as it is complete. If the engine breaks off, half an event is dropped and the stream ends
 * with an error event, so that a page never gets a stream that just stops. */
function wholeEvents(
  response: Response, requestId: string, call: Call, report: (outcome: Outcome) => void,
): ReadableStream<Uint8Array> {
  const { status } = response;
  const arriving = eventsOf(response);
  const encoder = new TextEncoder();
  return new ReadableStream({
    async pull(leaving) {
      try {
        const { value, done } = await arriving.next();
        if (!done) return leaving.enqueue(encoder.encode(value));
        report({ status });
      } catch (fault) {
        const failure = call.failure("CutOff", fault);
        report({ status, failure });
        leaving.enqueue(encoder.encode(`event: error\ndata: ${problemBody(failure, requestId)}\n\n`));
      }
      call.end();
      leaving.close();
    },
    cancel() {
      report({ status, failure: readerLeft() });
      call.giveUp();
    },
  });
}

async function* eventsOf(response: Response): AsyncGenerator<string, undefined> {
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    rest += decoder.decode(value, { stream: true });
    const end = rest.lastIndexOf("\n\n");
    if (end < 0) continue;
    yield rest.slice(0, end + 2);
    rest = rest.slice(end + 2);
  }
  if (rest) throw new Error("The last event is not complete.");
}

/** A question in progress, with its timeout. It is cancelled when the reader disconnects. */
class Call {
  readonly #ending = new AbortController();
  readonly #leaving: AbortSignal;
  readonly #onLeaving = (): void => this.giveUp();
  #clock: ReturnType<typeof setTimeout> | undefined;
  #isTimeOver = false;

  constructor(leaving: AbortSignal) {
    this.#leaving = leaving;
    leaving.addEventListener("abort", this.#onLeaving);
    this.allow(FIRST_BYTE_MS);
    if (leaving.aborted) this.giveUp();
  }

  get signal(): AbortSignal {
    return this.#ending.signal;
  }

  /** Another time begins in place of the last. */
  allow(ms: number): void {
    clearTimeout(this.#clock);
    this.#clock = setTimeout(() => {
      this.#isTimeOver = true;
      this.giveUp();
    }, ms);
  }

  end(): void {
    clearTimeout(this.#clock);
    this.#leaving.removeEventListener("abort", this.#onLeaving);
  }

  giveUp(): void {
    this.end();
    this.#ending.abort();
  }

  failure(otherwise: "Unreachable" | "CutOff", fault: unknown): Failure {
    if (this.#leaving.aborted) return readerLeft();
    return this.#isTimeOver ? new Failure("OutOfTime") : new Failure(otherwise, { cause: codeOf(fault) });
  }
}

/** Only the system's error code, without the message. */
function codeOf(fault: unknown): string {
  const cause = fault instanceof Error ? (fault.cause ?? fault) : fault;
  if (typeof cause !== "object" || cause === null) return "unknown";
  return "code" in cause ? String(cause.code) : cause.constructor.name;
}
