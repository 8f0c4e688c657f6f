/** Allowlist of a body's fields: those that name a person or another book are dropped, and those of a widget's own. */
import { BODY_BYTES_MAX, Failure } from "./problems.js";

/** A field of the body, name and value as they were sent: what the engine would refuse must not be mended on the way. */
export interface Field {
  name: string;
  sent: string;
}

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{},]/g; // of valid JSON, what decides where a field ends

/** The fields of the body, which must be an object. The engine validates their values. */
export async function readBody(request: Request): Promise<Field[]> {
  const type = request.headers.get("Content-Type") ?? "";
  if (!/^application\/json\s*(;|$)/i.test(type)) throw new Failure("NotJsonType");
  if (Number(request.headers.get("Content-Length")) > BODY_BYTES_MAX) throw new Failure("TooLarge");
  const bytes = await capped(request);
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes); // a BOM stays, and is no JSON
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return fieldsOf(text);
  } catch {
    throw new Failure("BadRequest");
  }
  throw new Failure("BadRequest");
}

export function picked(fields: readonly Field[], names: readonly string[]): string {
  return `{${fields.filter(({ name }) => names.includes(name)).map(({ sent }) => sent).join(",")}}`;
}

/** A name that is there twice is two fields. */
function fieldsOf(text: string): Field[] {
  const found: Field[] = [];
  let depth = 0;
  let start = 0;
  let name: string | undefined;
  for (const { 0: token, index } of text.matchAll(TOKENS)) {
    if (token === "}" || token === "]") depth--;
    const isEnd = depth === 0 || (depth === 1 && token === ",");
    if (isEnd && name !== undefined) found.push({ name: JSON.parse(name) as string, sent: text.slice(start, index) });
    if (depth === 1 && token.startsWith('"')) name ??= token;
    if (token === "{" || token === "[") depth++;
    if (isEnd) [start, name] = [index + 1, undefined];
  }
  return found;
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
