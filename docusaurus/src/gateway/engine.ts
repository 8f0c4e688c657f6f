/** HTTP client of the engine: forwards one request, and returns its answer as JSON or event by event. */
import type { GatewayOptions } from "./gateway.js";
import type { Destination } from "./paths.js";
import { Failure, readerLeft } from "./problems.js";
import { EVENTS, wholeEvents } from "./stream.js";

export interface Engine {
  /** Without a slash at its end. */
  base: string;
  key: string;
  /** That may be asked; the first unless a page names another. None: the engine's own default. */
  books: readonly string[];
}

export interface Outcome {
  status: number;
  failure?: Failure;
}

export interface Asked {
  request: Request;
  requestId: string;
  reader: string;
  to: Destination;
  book: string | undefined;
  /** The body, as it goes to the engine. */
  question: string | null;
}

const FIRST_BYTE_MS = 7_000; // the engine promises an answer in 5 s; the rest is for the connection
const ANSWER_MS = 15_000; // from the first byte to the last; for a reader on a slow line
const BOOK_ID = /^[a-z0-9][a-z0-9-]{0,62}$/;
const SESSION_TOKEN = /^[\w-]{1,128}$/;
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
  const books = [book ?? []].flat();
  const wrong = books.find((one) => !BOOK_ID.test(one));
  if (wrong !== undefined) throw new Error(`"${wrong}" is not a valid book id.`);
  return { base: base.href.replace(/\/+$/, ""), key, books };
}

export async function askEngine(
  engine: Engine, asked: Asked, report: (outcome: Outcome) => void,
): Promise<Response> {
  const call = new Call(asked.request.signal);
  try {
    const response = await sent(engine, asked, call);
    const headers = headersOf(response, asked.requestId);
    const { status } = response;
    if (response.body && typeOf(response) === EVENTS) {
      call.allow(ANSWER_MS);
      const events = wholeEvents(response, asked.to.form, asked.requestId, {
        ended: (failure) => (call.end(), report({ status, ...(failure && { failure }) })),
        left: () => (call.giveUp(), report({ status, failure: readerLeft() })),
        failure: (fault) => call.failure("CutOff", fault),
      });
      return new Response(events, { status, headers });
    }
    const body = await whole(response, call);
    call.end();
    report({ status });
    return new Response(body, { status, headers });
  } catch (fault) {
    call.giveUp();
    throw fault;
  }
}

async function whole(response: Response, call: Call): Promise<ArrayBuffer> {
  return response.arrayBuffer().catch((fault: unknown) => {
    throw call.failure("CutOff", fault);
  });
}

async function sent(engine: Engine, asked: Asked, call: Call): Promise<Response> {
  const { to, book, question } = asked;
  const isOwn = to.path === "/v1/query" && book !== undefined;
  const response = await fetch(engine.base + (isOwn ? `/v1/books/${book}/query` : to.path), {
    method: to.method,
    redirect: "manual", // the key is for the engine, not for where it may point
    signal: call.signal,
    headers: headersTo(engine, asked),
    body: question,
  }).catch((fault: unknown) => {
    throw call.failure("Unreachable", fault);
  });
  check(response);
  return response;
}

function headersTo(engine: Engine, { request, requestId, reader, to, book, question }: Asked): Headers {
  const headers = new Headers({
    "Authorization": `Bearer ${engine.key}`,
    "Accept": request.headers.get("Accept") ?? "application/json",
    "Accept-Encoding": "identity", // a compressed stream would be held back
    "X-End-User": `anon:${reader}`,
    "X-Request-ID": requestId,
  });
  if (question) headers.set("Content-Type", "application/json");
  if (question) headers.set("Prefer", "new-session"); // a browser may keep the id of one that has ended
  if (book !== undefined && to.book === undefined) headers.set("X-Book-ID", book);
  const token = request.headers.get("X-Session-Token") ?? "";
  if (SESSION_TOKEN.test(token)) headers.set("X-Session-Token", token);
  return headers;
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

/** A request in progress, with its timeout. It is cancelled when the reader disconnects. */
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
