/** Parser and validation of the settings, from flags and environment variables. A wrong setting stops the start. */
import { readFileSync, realpathSync, statSync } from "node:fs";
import { parseArgs } from "node:util";
import { DailyBudget } from "./admission/budget.js";
import { builtSite, type Built } from "./built.js";
import type { Site } from "./files.js";
import { TrustedProxies } from "./admission/proxies.js";
import type { ServerOptions } from "./server.js";

export interface Settings extends Omit<ServerOptions, "warn" | "report"> {
  host: string;
  port: number;
}

/** Wrong usage; the message says what to do. */
export class UsageError extends Error {}

const FLAGS = {
  "site": { type: "string", default: "build" },
  "no-site": { type: "boolean", default: false },
  "base-url": { type: "string" },
  "host": { type: "string", default: "127.0.0.1" },
  "port": { type: "string", default: "3300" },
  "engine": { type: "string", default: "http://127.0.0.1:8000" },
  "book": { type: "string", multiple: true },
  "path": { type: "string", default: "/ask" },
  "per-address": { type: "string", default: "30/minute" },
  "per-day": { type: "string" },
  "per-day-file": { type: "string" },
  "trusted-proxy": { type: "string", multiple: true },
  "allowed-origin": { type: "string", multiple: true },
  "help": { type: "boolean", short: "h", default: false },
} as const;

const PREFIX = "AFFIDAVIT_GATEWAY_";

export const HELP = `Usage: affidavit-gateway [flags]

Serves a built Docusaurus site, and forwards its readers' questions to the engine with an API key that no reader sees.

  AFFIDAVIT_KEY=aff_… npx affidavit-gateway --site build --engine http://127.0.0.1:8000 --book my-book

The key comes from the environment: AFFIDAVIT_KEY, or AFFIDAVIT_KEY_FILE with the path of a file that contains it.

  --site FOLDER          the built site (build)
  --no-site              take questions only; another server shows the pages
  --base-url PATH        baseUrl of the site, if its build does not say it
  --host ADDRESS         where to listen (127.0.0.1)
  --port N               (3300)
  --engine URL           where the engine is (http://127.0.0.1:8000)
  --book ID              the book that is asked; may be repeated, for a page to choose one. Without it, the books that
                         the build names, or else the engine's default
  --path PATH            where the pages send their questions (/ask)
  --per-address LIMIT    how often one reader may ask; of IPv6 a /64 is one reader (30/minute)
  --per-day N            questions of all readers in one day (UTC); without it, as many as the key may ask
  --per-day-file FILE    keeps the day's count, so that a restart does not reset it
  --trusted-proxy NET    a proxy, or a network of them, whose X-Forwarded-For is trusted; may be repeated
  --allowed-origin URL   a site whose pages may ask; may be repeated. Without it, only pages of the host that is asked;
                         with it, only the sites named
  --help

Each flag can also be an environment variable: --per-day as AFFIDAVIT_GATEWAY_PER_DAY. Separate several values by commas.
`;

type Given = ReturnType<typeof given>;
type Environment = Record<string, string | undefined>;

/** Null if help is asked for. */
export function settingsOf(args: readonly string[], environment: Environment): Settings | null {
  const flags = given(args, environment);
  if (flags.help) return null;
  const built = flags["no-site"] ? null : siteOf(flags.site, flags["base-url"]);
  const budget = budgetOf(flags["per-day"], flags["per-day-file"]);
  return {
    host: flags.host,
    port: number("port", flags.port, 65_535),
    engine: flags.engine,
    key: keyOf(environment),
    book: flags.book ?? built?.books ?? [],
    path: pathOf(flags.path),
    site: built && { folder: built.folder, baseUrl: built.baseUrl },
    perAddress: flags["per-address"],
    ...(budget && { budget }),
    proxies: told(() => new TrustedProxies(flags["trusted-proxy"] ?? [])),
    allowedOrigins: (flags["allowed-origin"] ?? []).map(originOf),
  };
}

function given(args: readonly string[], environment: Environment) {
  if (args.some((arg) => /^--?(api-?)?(key|token|secret)\b|aff_/i.test(arg))) {
    throw new UsageError(
      "A key on the command line is refused, because every user of the machine can read it there. " +
        "Set AFFIDAVIT_KEY or AFFIDAVIT_KEY_FILE.",
    );
  }
  return told(() => parseArgs({ args: [...fromEnvironment(environment, args), ...args], options: FLAGS }).values);
}

/** Comes before the flags, so that a flag wins. An unknown name is an error, or a misspelt budget would be ignored. */
function fromEnvironment(environment: Environment, args: readonly string[]): string[] {
  return Object.entries(environment).flatMap(([variable, value]) => {
    if (!variable.startsWith(PREFIX) || !value) return [];
    const name = variable.slice(PREFIX.length).replaceAll("_", "-").toLowerCase();
    const flag = Object.entries(FLAGS).find(([known]) => known === name)?.[1];
    if (!flag) throw new UsageError(`There is no setting ${variable}.`);
    if (args.some((arg) => arg === `--${name}` || arg.startsWith(`--${name}=`))) return [];
    if (flag.type === "boolean") return /^(1|true|yes)$/i.test(value) ? [`--${name}`] : [];
    return ("multiple" in flag ? value.split(",") : [value]).map((one) => `--${name}=${one.trim()}`);
  });
}

/** Reports any exception of `make` as wrong usage. */
function told<Value>(make: () => Value): Value {
  try {
    return make();
  } catch (wrong) {
    throw new UsageError(wrong instanceof Error ? wrong.message : String(wrong));
  }
}

function keyOf(environment: Environment): string {
  const file = environment.AFFIDAVIT_KEY_FILE;
  const key = file ? told(() => readFileSync(file, "utf8")).trim() : environment.AFFIDAVIT_KEY;
  if (key) return key;
  throw new UsageError(
    "There is no key. Make one with `affidavit keys create --client my-site`, and set AFFIDAVIT_KEY or AFFIDAVIT_KEY_FILE.",
  );
}

function siteOf(folder: string, givenUrl: string | undefined): Site & Built {
  const stats = statSync(folder, { throwIfNoEntry: false });
  if (!stats?.isDirectory()) {
    throw new UsageError(
      `There is no folder ${folder}. Build the site first (npm run build), name its folder with --site, ` +
        "or start with --no-site.",
    );
  }
  const built = told(() => builtSite(folder));
  const baseUrl = givenUrl ?? built.baseUrl;
  if (!/^\/(?:[\w.~-]+\/)*$/.test(baseUrl)) throw new UsageError(`--base-url ${baseUrl}: begin and end it with a slash.`);
  return { folder: realpathSync(folder), baseUrl, books: built.books };
}

function budgetOf(perDay: string | undefined, file: string | undefined): DailyBudget | undefined {
  if (perDay === undefined && file !== undefined) throw new UsageError("--per-day-file needs --per-day.");
  return perDay === undefined ? undefined : told(() => new DailyBudget(number("per-day", perDay), file));
}

function pathOf(path: string): string {
  if (!/^(?:\/[\w.~-]+)+$/.test(path)) throw new UsageError(`--path ${path}: write it like /ask.`);
  return path;
}

function originOf(origin: string): string {
  if (URL.canParse(origin) && new URL(origin).origin === origin && origin.startsWith("http")) return origin;
  throw new UsageError(`--allowed-origin ${origin}: write it like https://book.example.org, without a path.`);
}

function number(name: keyof Given, written: string, max = Number.MAX_SAFE_INTEGER): number {
  const value = /^\d+$/.test(written) ? Number(written) : Number.NaN;
  if (value <= max) return value;
  throw new UsageError(`--${name} ${written}: must be a whole number.`);
}
