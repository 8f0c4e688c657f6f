/** What `create` inserted, kept in the site, so that `undo` removes exactly that. */
import { createHash } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { Refusal, textOf, withInsertions, type Change } from "./site.js";

export const RECORD = ".affidavit-create.json";

/** An insertion, where it stands in the changed file. */
interface Inserted {
  at: number;
  text: string;
}
interface Recorded {
  file: string;
  isNew: boolean;
  /** Of the file before it was changed. */
  hash: string;
  inserted: Inserted[];
}

/** The record first: whatever happens afterwards can be undone. */
export function record(site: string, changes: readonly Change[]): void {
  const files = changes.map(({ file, isNew, insertions }): Recorded =>
    ({ file, isNew, hash: hashOf(textOf(site, file) ?? ""), inserted: placed(insertions) }));
  const changed = changes.map(({ file, insertions }) => [file, withInsertions(textOf(site, file) ?? "", insertions)] as const);
  writeFileSync(path.join(site, RECORD), `${JSON.stringify({ version: 1, files }, null, 2)}\n`);
  for (const [file, text] of changed) writeFileSync(path.join(site, file), text);
}

export function recordOf(site: string): Recorded[] | null {
  const text = textOf(site, RECORD);
  if (text === null) return null;
  try {
    return (JSON.parse(text) as { files: Recorded[] }).files;
  } catch {
    throw new Refusal(`${RECORD} cannot be read. Restore it from git, or remove by hand what it named.`);
  }
}

export function isWhole(site: string, recorded: readonly Recorded[]): boolean {
  return recorded.every(({ file, inserted }) => inserted.every(({ text }) => textOf(site, file)?.includes(text)));
}

/** The files that were restored. All are checked before one is written. */
export function undo(site: string): string[] {
  const recorded = recordOf(site);
  if (!recorded) throw new Refusal(`There is nothing to undo: ${RECORD} is not here.`);
  const restored = recorded.map((one) => ({ ...one, text: without(one, textOf(site, one.file)) }));
  for (const { file, isNew, text } of restored) {
    if (isNew && text === "") rmSync(path.join(site, file), { force: true });
    else if (text !== null) writeFileSync(path.join(site, file), text);
  }
  rmSync(path.join(site, RECORD));
  return restored.filter(({ text }) => text !== null).map(({ file }) => file);
}

/** Null if there is nothing to remove: the file is gone, or was never changed. */
function without({ file, hash, inserted }: Recorded, text: string | null): string | null {
  if (text === null || hashOf(text) === hash) return null;
  return [...inserted].reverse().reduce((left, { at, text: added }) => {
    const place = left.startsWith(added, at) ? at : onlyPlace(left, added);
    if (place === null) {
      throw new Refusal(`${file} was changed since. Remove what is left of this by hand, and then the file ${RECORD}:\n${added.trim()}`);
    }
    return left.slice(0, place) + left.slice(place + added.length);
  }, text);
}

function hashOf(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

function onlyPlace(text: string, wanted: string): number | null {
  const at = text.indexOf(wanted);
  return at < 0 || text.includes(wanted, at + 1) ? null : at;
}

function placed(insertions: Change["insertions"]): Inserted[] {
  let before = 0;
  return [...insertions].sort((one, other) => one.at - other.at).map(({ at, text }) => {
    const inserted = { at: at + before, text };
    before += text.length;
    return inserted;
  });
}
