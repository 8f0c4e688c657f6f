/** The one list of what is forwarded: the addresses of the family's chat widgets as the engine has them, in their own shapes.
 * All else is nothing that the gateway knows. No part of an address that a reader sent goes to the engine as it came. */

/** How a stream of that address ends when it cannot go on (stream.ts). */
export type Form = "named" | "typed" | "chunk" | "content";

export interface Destination {
  method: "POST" | "GET" | "DELETE";
  /** At the engine. */
  path: string;
  /** What of a body goes on; null where there is none. */
  fields: readonly string[] | null;
  form: Form;
  /** Named in the address, and so not to be chosen. */
  book?: string;
}

interface Listed extends Omit<Destination, "book"> {
  /** Instead of a plain comparison with `path`: what it captures takes the place of `{…}`. */
  pattern?: RegExp;
}

const V1 = ["query", "selected_text", "top_k", "filters", "session_id"];
const SPEC_001 = [...V1, "sessionId", "topK", "selectedText"];
const SPEC_004 = ["question", "top_k", "selected_text"];
const UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
const SESSION = new RegExp(`^/api/v1/chat/sessions/(${UUID})$`);

/** Where questions of the panel go. */
const OWN: Listed = { method: "POST", path: "/v1/query", fields: V1, form: "named" };

/** Where readers' thumbs go. The panel sends them to the gateway's own address, with `feedback` in its query. */
export const FEEDBACK: Listed = { method: "POST", path: "/v1/feedback", fields: ["query_id", "helpful", "reason"], form: "named" };

const LIST: readonly Listed[] = [
  OWN,
  FEEDBACK,
  { method: "POST", path: "/api/query", fields: ["query", "selected_text"], form: "typed" },
  { method: "POST", path: "/api/chat", fields: ["message", "query", "question", "selected_text", "top_k"], form: "typed" },
  { method: "POST", path: "/api/chat/", fields: ["message", "query", "question", "selected_text", "top_k"], form: "typed" },
  { method: "POST", path: "/api/v1/query", fields: SPEC_001, form: "chunk" },
  { method: "GET", path: "/api/v1/chat/sessions/{id}", pattern: SESSION, fields: null, form: "named" },
  { method: "DELETE", path: "/api/v1/chat/sessions/{id}", pattern: SESSION, fields: null, form: "named" },
  { method: "POST", path: "/chat/query", fields: V1, form: "typed" },
  {
    method: "POST", path: "/chat/book/{book}/query", pattern: /^\/chat\/book\/([a-z0-9][a-z0-9-]{0,62})\/query$/,
    fields: V1, form: "typed",
  },
  { method: "POST", path: "/query", fields: ["question", "selected_text"], form: "typed" },
  { method: "GET", path: "/chapters", fields: null, form: "named" },
  { method: "POST", path: "/api/ask", fields: SPEC_004, form: "content" },
  { method: "POST", path: "/ask", fields: SPEC_004, form: "content" },
  { method: "POST", path: "/api/ask/stream", fields: SPEC_004, form: "content" },
];

export const HEALTH: readonly string[] = ["/health", "/api/health"];

/** What an address leads to, and with which methods; none if it is not listed. */
export function destinationsOf(address: string): Destination[] {
  return LIST.flatMap((listed) => {
    const { pattern, ...destination } = listed;
    if (!pattern) return address === listed.path ? [destination] : [];
    const [, captured] = pattern.exec(address) ?? [];
    if (captured === undefined) return [];
    const path = listed.path.replace(/\{\w+\}/, captured);
    return [{ ...destination, path, ...(listed.path.includes("{book}") && { book: captured }) }];
  });
}

/** The panel and spec 004's widgets may share an address; the former send a `query`, the latter a `question`. */
export function ownDestination(address: string, isPanels: boolean): Destination {
  if (isPanels) return OWN;
  return destinationsOf(address).find(({ method }) => method === "POST") ?? destinationsOf("/ask")[0]!;
}

// Its list of error types has none for a key, a limit or a time-out; the engine's own problems there say the same.
const SPEC_003_ERROR_TYPES: Record<string, string> = { auth: "unknown", rate_limit: "agent", timeout: "agent" };

export function errorTypeAt(address: string, type: string): string {
  return address === "/query" ? (SPEC_003_ERROR_TYPES[type] ?? type) : type;
}
