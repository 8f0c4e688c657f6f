/** Error responses of the gateway: RFC 9457 problem documents in the engine's own shape, safe to show to readers. */

import { errorTypeAt } from "./paths.js";

interface Kind {
  status: number;
  error_type: "validation" | "auth" | "rate_limit" | "network" | "timeout" | "unknown";
  retryable: boolean;
  title: string;
  detail: string;
}

export const BODY_BYTES_MAX = 65_536; // as the engine: its longest question is a tenth of that

const KINDS = {
  NotFound: {
    status: 404, error_type: "validation", retryable: false,
    title: "Address not found",
    detail: "Nothing can be asked at this address.",
  },
  WrongMethod: {
    status: 405, error_type: "validation", retryable: false,
    title: "Method not allowed",
    detail: "This address does not support that method. Send questions with POST.",
  },
  ForeignOrigin: {
    status: 403, error_type: "auth", retryable: false,
    title: "Only this site's pages may ask",
    detail: "This question did not come from a page of this site. Open the site in your browser and ask there.",
  },
  NotJsonType: {
    status: 415, error_type: "validation", retryable: false,
    title: "The request is not JSON",
    detail: "Send the question as JSON, with the content type application/json.",
  },
  BadRequest: {
    status: 400, error_type: "validation", retryable: false,
    title: "The request cannot be read",
    detail: "The body must be one JSON object in UTF-8.",
  },
  TooLarge: {
    status: 413, error_type: "validation", retryable: false,
    title: "The request is too large",
    detail: "The body may have at most 64 KiB.",
  },
  RateLimited: {
    status: 429, error_type: "rate_limit", retryable: true,
    title: "Too many questions",
    detail: "Your network has sent too many questions. Please wait a moment and try again.",
  },
  BudgetSpent: {
    status: 429, error_type: "rate_limit", retryable: false,
    title: "No more questions today",
    detail: "This site has answered as many questions as it can today. Please come back tomorrow.",
  },
  Unreachable: {
    status: 502, error_type: "network", retryable: true,
    title: "The assistant cannot be reached",
    detail: "The assistant cannot be reached at the moment. Please try again shortly.",
  },
  CutOff: {
    status: 502, error_type: "network", retryable: true,
    title: "The answer was cut off",
    detail: "The connection to the assistant broke before the answer was complete. Please try again.",
  },
  NoAnswer: {
    status: 502, error_type: "unknown", retryable: true,
    title: "The assistant failed",
    detail: "The assistant returned no usable answer. Please try again shortly.",
  },
  Misconfigured: {
    status: 502, error_type: "auth", retryable: false,
    title: "The assistant is not set up correctly",
    detail: "The assistant of this site is not set up correctly. Please tell the people who run the site.",
  },
  OutOfTime: {
    status: 504, error_type: "timeout", retryable: true,
    title: "The question took too long",
    detail: "The assistant did not answer in time. Please try again, or ask a simpler question.",
  },
  Unexpected: {
    status: 500, error_type: "unknown", retryable: true,
    title: "Something went wrong",
    detail: "An unexpected error occurred. Please try again.",
  },
} as const satisfies Record<string, Kind>;

/** Ends a request. The log contains the reason; readers see only the kind. */
export class Failure extends Error {
  readonly kind: Kind;
  readonly retryAfterS: number | undefined;
  readonly allow: string;
  readonly reason: string;

  constructor(name: keyof typeof KINDS, told: { cause?: string; retryAfterS?: number; allow?: string } = {}) {
    super(name);
    this.name = name;
    this.kind = KINDS[name];
    this.retryAfterS = told.retryAfterS;
    this.allow = told.allow ?? "";
    this.reason = told.cause ?? "";
  }

  /** Logs only the class name of an unexpected error: its message may contain personal data. */
  static of(fault: unknown): Failure {
    if (fault instanceof Failure) return fault;
    return new Failure("Unexpected", { cause: fault instanceof Error ? fault.name : typeof fault });
  }
}

/** The client disconnected: no response is sent, and the log says so. */
export function readerLeft(): Failure {
  return new Failure("CutOff", { cause: "the reader left" });
}

export function problemResponse(failure: Failure, requestId: string, address: string): Response {
  const headers = new Headers({
    "Content-Type": "application/problem+json",
    "Cache-Control": "no-store, no-transform",
    "X-Content-Type-Options": "nosniff",
    "X-Request-ID": requestId,
  });
  if (failure.retryAfterS) headers.set("Retry-After", String(failure.retryAfterS));
  if (failure.allow) headers.set("Allow", failure.allow);
  return new Response(problemBody(failure, requestId, address), { status: failure.kind.status, headers });
}

export function problemBody(failure: Failure, requestId: string, address = ""): string {
  const { status, title, detail, error_type, retryable } = failure.kind;
  return JSON.stringify({
    type: `urn:affidavit:problem:${failure.name}`,
    title,
    status,
    detail,
    error_type: errorTypeAt(address, error_type),
    retryable,
    user_safe_message: detail,
    retry_able: retryable,
    retry_after: failure.retryAfterS ?? null,
    request_id: requestId,
    query_id: null,
    field: null,
  });
}
