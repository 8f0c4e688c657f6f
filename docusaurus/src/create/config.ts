/** Where the plugin goes in `docusaurus.config.*`. What is not understood is refused, with the line to write oneself. */
import { nextSign, propertiesOf, sourceOf, type Source } from "./source.js";
import { Refusal, type Insertion } from "./site.js";

export const PLUGIN = "docusaurus-plugin-affidavit";

const EXPORT = /\b(?:export\s+default|module\.exports\s*=)\s*\(?\s*/g;
const NAME = /^([A-Za-z_$][\w$]*)\s*(?:;|\)|$|\n|\r|satisfies\b|as\b)/;

/** Nothing if the plugin is there already. */
export function configInsertions(text: string, file: string, book: string | undefined): Insertion[] {
  const source = sourceOf(text);
  if (new RegExp(`["'\`]${PLUGIN}["'\`]`).test(source.uncommented)) return [];
  const entry = book === undefined ? `"${PLUGIN}"` : `["${PLUGIN}", { book: "${book}" }]`;
  const refuse = (why: string) => new Refusal(`${file} ${why}. Add this to its plugins yourself: plugins: [${entry}]`);
  const open = configObject(source);
  const properties = open === null ? null : propertiesOf(source, open);
  if (open === null || !properties) throw refuse("exports no plain object that can be read here");
  const [plugins, second] = properties.filter(({ name }) => name === "plugins");
  const spread = properties.findLastIndex(({ name }) => name === "...");
  if (second) throw refuse("names plugins twice");
  if (spread >= 0 && (!plugins || spread > properties.indexOf(plugins))) throw refuse("takes plugins from another object (...)");
  if (!plugins) return [insertFirst(source, open, `plugins: [${entry}]`)];
  if (source.code[plugins.value] !== "[") throw refuse("has plugins that are no plain list");
  return [insertFirst(source, plugins.value, entry)];
}

/** Where the object begins that the file exports, directly or by its name. */
function configObject(source: Source): number | null {
  const exported = [...source.code.matchAll(EXPORT)];
  const [only] = exported;
  if (!only || exported.length > 1) return null;
  const at = only.index + only[0].length;
  if (source.code[at] === "{") return at;
  const name = NAME.exec(source.code.slice(at))?.[1];
  return name === undefined ? null : declaredObject(source, name);
}

function declaredObject({ code }: Source, name: string): number | null {
  const declared = new RegExp(`^(?:const|let|var)\\s+${name.replaceAll("$", "\\$")}\\s*(?::[^={}]+)?=\\s*(?=\\{)`, "gm");
  const [only, second] = code.matchAll(declared);
  return only && !second ? only.index + only[0].length : null;
}

/** As the first thing in a list or an object: on a line of its own where the others are. */
export function insertFirst(source: Source, open: number, entry: string): Insertion {
  const { text, code } = source;
  const next = nextSign(source, open + 1);
  const comma = "]}".includes(code[next]!) ? "" : ",";
  const between = /^[ \t]*(\r?\n)/.exec(text.slice(open + 1));
  if (!between) return { at: open + 1, text: comma ? `${entry}, ` : entry };
  return { at: open + 1, text: `${between[1]}${indentAfter(text, open)}${entry}${comma}` };
}

/** One step deeper than the line that opens it. */
function indentAfter(text: string, open: number): string {
  const line = text.slice(text.lastIndexOf("\n", open) + 1);
  const own = /^[ \t]*/.exec(line)![0];
  return own + (own.includes("\t") || /\n\t/.test(text) ? "\t" : /\n {4}\S/.test(text) && !/\n {2}\S/.test(text) ? "    " : "  ");
}

