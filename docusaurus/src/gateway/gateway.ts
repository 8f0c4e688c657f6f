/** Reverse proxy from a page of the site to the engine: checks a question, adds the key, forwards the answer. It needs no
 * server: a Request goes in and a Response comes out, as on serverless platforms. */
import { readerOf } from "./admission/address.js";
import { isRate, Limit } from "./admission/limit.js";
import { admitted, allowingOrigin, preflight } from "./admission/origin.js";
import { askEngine, engineOf, type Engine, type Outcome } from "./engine.js";
import { EngineHealth } from "./health.js";
import { destinationsOf, FEEDBACK, HEALTH, ownDestination, type Destination } from "./paths.js";
import { Failure, problemResponse, readerLeft } from "./problems.js";
import { picked, readBody, type Field } from "./question.js";

export interface GatewayOptions {
  /** Address of the engine, such as `https://engine.example.org`. */
  engine: string;
  /** API key of the engine. It leaves this process for the engine alone. */
  key: string;
  /** The book that is asked, or several: then the first, unless a page names another in the address (`?book=`). Without it,
   * the engine's default book. */
  book?: string | readonly string[];
  /** Where the panel's questions arrive; `/ask` unless said. */
  path?: string;
  /** The header in which the platform itself names the reader's address, such as `x-real-ip`. It must not be one that
   * readers can set. */
  addressHeader: string;
  /** How often one reader may ask; `30/minute` unless said. */
  perAddress?: string;
  /** Other sites whose pages may ask, such as `https://book.example.org`. Without any, only the gateway's own site. */
  allowedOrigins?: readonly string[];
  /** Counts what the whole site may ask: how long to wait, 0 to go on. */
  budget?: { waitS(): number };
  /** Hears once of every request how it ended. Never of the question. */
  report?: (ended: Ended) => void;
}

export interface Ended {
  status: number;
  ms: number;
  requestId: string;
  /** The reader's address, or the network it was grouped to. */
  reader: string | null;
  /** What went wrong, by the name that the problem has. */
  problem?: string;
  /** Why, for whoever runs the gateway. */
  cause?: string;
}

interface Rules {
  engine: Engine;
  health: EngineHealth;
  path: string;
  limit: Limit;
  origins: ReadonlySet<string>;
  options: GatewayOptions;
}

/** What is known of one request so far. */
interface Asking {
  request: Request;
  requestId: string;
  reader: string | null;
}

const REQUEST_ID = /^[\w.:-]{1,128}$/; // as the engine takes it: harmless in a log
const GONE = 499; // in reports, of a reader who left before there was a status; nobody is sent it

export function gateway(options: GatewayOptions): (request: Request) => Promise<Response> {
  const rules = checked(options);
  return async (request) => {
    const asking = { request, requestId: requestIdOf(request), reader: null };
    const report = reporter(asking, options.report);
    try {
      const response = await answer(asking, rules, report);
      return allowingOrigin(response, request, rules.origins);
    } catch (fault) {
      const isGone = request.signal.aborted;
      const failure = isGone ? readerLeft() : Failure.of(fault);
      report({ status: isGone ? GONE : failure.kind.status, failure });
      return allowingOrigin(problemResponse(failure, asking.requestId, new URL(request.url).pathname), request, rules.origins);
    }
  };
}

async function answer(asking: Asking, rules: Rules, report: (outcome: Outcome) => void): Promise<Response> {
  const { request } = asking;
  const { pathname, searchParams } = new URL(request.url);
  if (HEALTH.includes(pathname) && /^(GET|HEAD)$/.test(request.method)) return rules.health.response();
  const leads = leadsOf(pathname, rules.path);
  admitted(request, rules.origins, leads.map(({ method }) => method));
  if (request.method === "OPTIONS") return preflight();
  asking.reader = readerOf(request.headers.get(rules.options.addressHeader) ?? "");
  if (asking.reader === null) throw new Failure("Misconfigured", { cause: "no address of the reader" });
  rules.limit.take(asking.reader);
  const listed = leads.find(({ method }) => method === request.method)!;
  const body = listed.fields && (await readBody(request));
  const to = pathname === rules.path && body ? ownTo(pathname, searchParams, body) : listed;
  const book = bookOf(rules.engine.books, to, searchParams.get("book"));
  if (body && to.path !== FEEDBACK.path) spend(rules.options.budget);
  const question = body && picked(body, to.fields ?? []);
  return askEngine(rules.engine, { ...asking, reader: asking.reader, to, book, question }, report);
}

/** What may be asked for at this address; at the panel's own, questions. */
function leadsOf(address: string, ownPath: string): Destination[] {
  const leads = address === ownPath ? [ownDestination(address, true)] : destinationsOf(address);
  if (leads.length === 0) throw new Failure("NotFound");
  return leads;
}

function ownTo(address: string, named: URLSearchParams, body: readonly Field[]): Destination {
  const has = (name: string): boolean => body.some((field) => field.name === name);
  return named.has("feedback") ? FEEDBACK : ownDestination(address, !has("question") || has("query"));
}

/** A page chooses among the books of the site, and no reader any other. */
function bookOf(books: readonly string[], to: Destination, named: string | null): string | undefined {
  if (to.book !== undefined && !books.includes(to.book)) throw new Failure("NotFound", { cause: "not a book of this site" });
  return to.book ?? books.find((one) => one === named) ?? books[0];
}

function spend(budget: GatewayOptions["budget"]): void {
  const waitS = budget?.waitS() ?? 0;
  if (waitS > 0) throw new Failure("BudgetSpent", { retryAfterS: waitS });
}

function checked(options: GatewayOptions): Rules {
  const rate = options.perAddress ?? "30/minute";
  if (!isRate(rate)) throw new Error(`perAddress: "${rate}" is not a limit. Write it like 30/minute.`);
  const engine = engineOf(options);
  return {
    engine,
    health: new EngineHealth(engine),
    path: options.path ?? "/ask",
    limit: new Limit(rate),
    origins: new Set(options.allowedOrigins),
    options,
  };
}

/** Reports the end of a request once, and ignores later ends. */
function reporter(asking: Asking, tell: GatewayOptions["report"]): (outcome: Outcome) => void {
  const startedMs = Date.now();
  let isTold = false;
  return ({ status, failure }) => {
    if (isTold) return;
    isTold = true;
    const { requestId, reader } = asking;
    const ms = Date.now() - startedMs;
    const wrong = failure && { problem: failure.name, cause: failure.reason };
    tell?.({ status, ms, requestId, reader, ...wrong });
  };
}

function requestIdOf(request: Request): string {
  const given = request.headers.get("X-Request-ID") ?? "";
  return REQUEST_ID.test(given) ? given : crypto.randomUUID();
}
