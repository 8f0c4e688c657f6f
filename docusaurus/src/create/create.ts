/** Wires the plugin and the gateway into a site: its configuration, a script, a sample of the environment. */
import { readdirSync } from "node:fs";
import { configInsertions, insertFirst, PLUGIN } from "./config.js";
import { isWhole, record, recordOf } from "./record.js";
import { Refusal, textOf, type Change, type Insertion } from "./site.js";
import { nextSign, propertiesOf, sourceOf } from "./source.js";

export const SCRIPT = "affidavit";
const COMMAND = `${PLUGIN} serve`;
const CONFIG = /^docusaurus\.config\.(?:m|c)?[jt]s$/;
const DOCUSAURUS_NEEDED = 3;

interface Wanted {
  book?: string;
  engine: string;
}

/** The files that were changed; none if all of it is there already. */
export function create(site: string, wanted: Wanted): string[] {
  const done = recordOf(site);
  if (done && isWhole(site, done)) return [];
  if (done) throw new Refusal(`Parts of what was wired into this site are gone. Undo the rest first: npx ${PLUGIN} undo`);
  const changes = [packageChange(site), configChange(site, wanted.book), sampleChange(site, wanted.engine), ignoreChange(site)];
  const needed = changes.filter(({ insertions }) => insertions.length > 0);
  if (needed.length > 0) record(site, needed);
  return needed.map(({ file }) => file);
}

function configChange(site: string, book: string | undefined): Change {
  const found = readdirSync(site).filter((name) => CONFIG.test(name));
  const [file, second] = found;
  if (!file) throw new Refusal("There is no docusaurus.config.js (or .ts, .mjs) here. Run this in the folder of the site.");
  if (second) throw new Refusal(`There are several configurations (${found.join(", ")}). Remove the one that is not used.`);
  return { file, isNew: false, insertions: configInsertions(textOf(site, file) ?? "", file, book) };
}

function packageChange(site: string): Change {
  const file = "package.json";
  const text = textOf(site, file);
  if (text === null) throw new Refusal("There is no package.json here. Run this in the folder of the site.");
  const described = parsed(text);
  checkDocusaurus(described);
  const script = described.scripts?.[SCRIPT];
  if (script === COMMAND) return { file, isNew: false, insertions: [] };
  if (script !== undefined) throw new Refusal(`package.json has another script "${SCRIPT}". Give it another name first.`);
  return { file, isNew: false, insertions: [scriptInsertion(text)] };
}

type Description = Partial<Record<"scripts" | "dependencies" | "devDependencies", Record<string, string>>>;

function parsed(text: string): Description {
  try {
    return JSON.parse(text.replace(/^\ufeff/, "")) as Description;
  } catch (wrong) {
    throw new Refusal(`package.json is not valid JSON (${(wrong as Error).message}). Mend it first.`);
  }
}

function checkDocusaurus({ dependencies, devDependencies }: Description): void {
  const version = { ...devDependencies, ...dependencies }["@docusaurus/core"];
  if (version === undefined) throw new Refusal("package.json does not name @docusaurus/core. Run this in the folder of the site.");
  const major = /\d+/.exec(version)?.[0];
  if (major && Number(major) < DOCUSAURUS_NEEDED) throw new Refusal(`The site has Docusaurus ${version}. The plugin needs ${DOCUSAURUS_NEEDED} or newer.`);
}

function scriptInsertion(text: string): Insertion {
  const source = sourceOf(text);
  const open = nextSign(source, text.startsWith("\ufeff") ? 1 : 0);
  const entry = `"${SCRIPT}": "${COMMAND}"`;
  const scripts = propertiesOf(source, open)?.find(({ name }) => name === "scripts");
  return scripts ? insertFirst(source, scripts.value, entry) : insertFirst(source, open, `"scripts": { ${entry} }`);
}

/** Only a sample: the key itself is put into `.env`, which git never sees. */
function sampleChange(site: string, engine: string): Change {
  const lines = [
    "# Affidavit: copy these lines to .env, and add the key that `affidavit keys create --client my-site` prints.",
    "AFFIDAVIT_KEY=",
    `AFFIDAVIT_GATEWAY_ENGINE=${engine}`,
  ];
  return appended(site, ".env.example", lines, /^AFFIDAVIT_KEY=/m);
}

function ignoreChange(site: string): Change {
  return appended(site, ".gitignore", [".env"], /^\/?\.env(?:\*|\s*)$/m);
}

/** At the end of a file, which is made if it is not there. */
function appended(site: string, file: string, lines: string[], present: RegExp): Change {
  const text = textOf(site, file);
  if (text !== null && present.test(text)) return { file, isNew: false, insertions: [] };
  const end = text?.includes("\r\n") ? "\r\n" : "\n";
  const before = text && !text.endsWith("\n") ? end : "";
  return { file, isNew: text === null, insertions: [{ at: text?.length ?? 0, text: before + lines.map((line) => line + end).join("") }] };
}
