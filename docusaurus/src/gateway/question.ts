/** Allowlist of a question's fields: those that name a person, a session or another book are dropped. */
import { BODY_BYTES_MAX, Failure } from "./problems.js";

const FIELDS = ["query", "selected_text", "top_k", "filters"] as const;

/** The body for the engine, with the allowed fields only; the engine validates their values. */
export async function readQuestion(request: Request): Promise<string> {
  const type = request.headers.get("Content-Type") ?? "";
  if (!/^application\/json\s*(;|$)/i.test(type)) throw new Failure("NotJsonType");
  if (Number(request.headers.get("Content-Length")) > BODY_BYTES_MAX) throw new Failure("TooLarge");
  const bytes = await capped(request);
  try {
    const sent: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    return JSON.stringify(picked(sent));
  } catch {
    throw new Failure("BadRequest");
  }
}

function picked(sent: unknown): Record<string, unknown> {
  if (typeof sent !== "object" || sent === null || Array.isArray(sent)) throw new Failure("BadRequest");
  const fields = new Map(Object.entries(sent));
  return Object.fromEntries(FIELDS.filter((name) => fields.has(name)).map((name) => [name, fields.get(name)]));
}

/** Counts the bytes as they arrive, whatever Content-Length says. */
async function capped(request: Request): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let count = 0;
  const reader = request.body?.getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    count += part.value.byteLength;
    if (count > BODY_BYTES_MAX) {
      await reader?.cancel();
      throw new Failure("TooLarge");
    }
    chunks.push(part.value);
  }
  return joined(chunks, count);
}

function joined(chunks: readonly Uint8Array[], count: number): Uint8Array {
  const whole = new Uint8Array(count);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.byteLength;
  }
  return whole;
}
