import { createRequire } from "node:module";
import type { Joi as JoiType } from "@docusaurus/utils-validation";

// It is CommonJS whose names Node cannot see from here, and Docusaurus' own loader sees it otherwise than Node does.
const { Joi } = createRequire(import.meta.url)("@docusaurus/utils-validation") as typeof import("@docusaurus/utils-validation");

export interface Options {
  /** Where the panel sends questions, on the site's own origin. */
  path: string;
  /** Where `docusaurus start` forwards questions to: a gateway on this machine. */
  gateway: string;
  /** Id of the book that is asked on this site; without it, the site's title as an id. */
  book?: string;
  /** Ids of single books, by locale or by locale and version, such as `de` and `de/1.0`. */
  books: Record<string, string>;
  /** Docs that are not exported, as globs of files in the docs folder. */
  exclude: string[];
  /** False if the site opens the panel by itself. */
  button: boolean;
  position: (typeof POSITIONS)[number];
  zIndex: number;
}

export const POSITIONS = ["bottom-end", "bottom-start", "top-end", "top-start"] as const;
export const ABOVE_THE_PAGE = 199; // and below Docusaurus' own navbar
export const BOOK_ID = /^[a-z0-9][a-z0-9-]{0,62}$/;
const GATEWAY = "http://127.0.0.1:3300";
const SECRET_NAME = /key|token|secret|passw|bearer|credential|authorization/i;
const SECRET_VALUE = /\baff_\w|^\s*bearer\s|:\/\/[^/]*@/i;

const schema = Joi.object<Options>({
  path: Joi.string().pattern(/^\/(?!\/)[^?#\s]*$/).default("/ask")
    .messages({ "string.pattern.base": "path must be a path on this site, such as /ask" }),
  gateway: Joi.string().uri({ scheme: ["http", "https"] }).default(GATEWAY),
  book: bookId("book"),
  books: Joi.object().pattern(Joi.string().pattern(/^[^/]+(\/[^/]+)?$/), bookId("each of books")).default({})
    .messages({ "object.unknown": "books: write a locale (de), or a locale and a version (de/1.0), and the id of its book" }),
  exclude: Joi.array().items(Joi.string().min(1)).default([])
    .messages({ "array.base": 'exclude must be a list of globs, such as ["internal/**"]' }),
  button: Joi.boolean().default(true),
  position: Joi.string().valid(...POSITIONS).default(POSITIONS[0]),
  zIndex: Joi.number().integer().default(ABOVE_THE_PAGE),
});

function bookId(name: string): JoiType.StringSchema {
  return Joi.string().pattern(BOOK_ID)
    .messages({ "string.pattern.base": `${name} must be the id of a book: small letters, digits and dashes, such as my-book` });
}

export function validateOptions({ options, validate }: {
  options: Partial<Options> | undefined;
  validate: (schema: JoiType.ObjectSchema<Options>, options: Partial<Options> | undefined) => Options & { id?: string };
}): Options {
  refuseSecrets(options, "options");
  const valid = validate(schema, options);
  if (valid.id && valid.id !== "default") throw new Error("A site has only one Ask panel: remove the option id.");
  return valid;
}

/** A misspelt locale would be a name that nothing has. */
export function refuseUnknownLocales({ books }: Options, locales: string[]): void {
  const unknown = Object.keys(books).find((name) => !locales.includes(name.split("/")[0] ?? ""));
  if (unknown === undefined) return;
  throw new Error(
    `docusaurus-plugin-affidavit: the option books names "${unknown}", but the site's locales are ${locales.join(", ")}. ` +
      "Write a locale (de), or a locale and a version (de/1.0).",
  );
}

/** Refuses secrets: every visitor of the site can read the options. */
function refuseSecrets(value: unknown, place: string, seen = new Set<unknown>()): void {
  if (typeof value === "string" && SECRET_VALUE.test(value)) throw new SecretError(place);
  if (typeof value !== "object" || value === null || seen.has(value)) return;
  seen.add(value);
  for (const [name, inner] of Object.entries(value)) {
    if (SECRET_NAME.test(name)) throw new SecretError(`${place}.${name}`);
    refuseSecrets(inner, `${place}.${name}`, seen);
  }
}

class SecretError extends Error {
  /** Names the place only: the value would end up in the log of the build. */
  constructor(place: string) {
    super(
      `docusaurus-plugin-affidavit: ${place} looks like a secret. The options of this plugin go to every browser that ` +
      "opens the site, so none may contain a key. Remove it here and give the key to the gateway, in its environment. " +
      "If this key was ever in a published build, revoke it: affidavit keys revoke ID",
    );
  }
}
