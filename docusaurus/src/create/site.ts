/** The files of a site that `create` changes: read whole, and changed by insertions only, so that they can be undone. */
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";

export interface Insertion {
  at: number;
  text: string;
}

/** What a file gets; `isNew` if it is made for it. */
export interface Change {
  file: string;
  isNew: boolean;
  insertions: Insertion[];
}

/** What cannot be done here. The message says why, and what to do. */
export class Refusal extends Error {}

/** The text of a file of the site, or null if it is not there. */
export function textOf(site: string, file: string): string | null {
  const place = path.join(site, file);
  if (!existsSync(place)) return null;
  const bytes = readFileSync(place);
  const text = bytes.toString("utf8");
  if (!Buffer.from(text, "utf8").equals(bytes)) throw new Refusal(`${file} is not in UTF-8, so it cannot be changed safely.`);
  return text;
}

export function withInsertions(text: string, insertions: readonly Insertion[]): string {
  return [...insertions].sort((one, other) => other.at - one.at)
    .reduce((changed, { at, text: more }) => changed.slice(0, at) + more + changed.slice(at), text);
}
