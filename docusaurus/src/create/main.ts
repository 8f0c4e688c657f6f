#!/usr/bin/env node
/** The command `docusaurus-plugin-affidavit`: create, undo, serve. */
import { existsSync } from "node:fs";
import { parseArgs } from "node:util";
import { BOOK_ID } from "../options.js";
import { PLUGIN } from "./config.js";
import { create, SCRIPT } from "./create.js";
import { undo } from "./record.js";
import { Refusal } from "./site.js";

const WRONG_USAGE = 2;
const ENGINE = "http://127.0.0.1:8000";

const HELP = `Usage: npx ${PLUGIN} create [--book ID] [--engine URL] [--site FOLDER]
       npx ${PLUGIN} undo [--site FOLDER]
       npx ${PLUGIN} serve [flags of affidavit-gateway]

create  wires the plugin into the site of this folder: docusaurus.config, a script "${SCRIPT}" in package.json,
        .env.example, and .env in .gitignore. Once wired, it changes nothing.
undo    removes exactly that again.
serve   starts the gateway with the settings of .env: the built site, and its readers' questions.

  --book ID      id of the book (the site's title, as an id)
  --engine URL   where the engine is (${ENGINE})
  --site FOLDER  the folder of the site (this one)
`;

async function main([command, ...args]: string[]): Promise<void> {
  if (command === "serve") return serve(args);
  if (command === "create" || command === "undo") {
    const { values } = parseArgs({
      args,
      options: { book: { type: "string" }, engine: { type: "string", default: ENGINE }, site: { type: "string", default: "." } },
    });
    const { book, engine, site } = values;
    say(command === "undo" ? undone(undo(site)) : created(create(site, { ...bookOf(book), engine: addressOf(engine) })));
  } else {
    process.stdout.write(HELP);
    process.exitCode = command === undefined || command === "--help" || command === "-h" ? 0 : WRONG_USAGE;
  }
}

async function serve(args: string[]): Promise<void> {
  if (existsSync(".env")) process.loadEnvFile(".env");
  process.argv.splice(2, Infinity, ...args);
  await import("../gateway/main.js");
}

function bookOf(book: string | undefined): { book?: string } {
  if (book === undefined) return {};
  if (!BOOK_ID.test(book)) throw new Refusal(`--book ${book}: write small letters, digits and dashes, such as my-book.`);
  return { book };
}

function addressOf(engine: string): string {
  if (/^https?:\/\/[^\s#]+$/.test(engine) && URL.canParse(engine)) return engine;
  throw new Refusal(`--engine ${engine}: write it like ${ENGINE}.`);
}

function created(files: string[]): string {
  if (files.length === 0) return "The plugin is in this site already; nothing was changed.";
  return `Changed: ${files.join(", ")}. Now build the site: it says what to ingest. Then copy .env.example to .env, ` +
    `put the key in, and start: npm run ${SCRIPT}\nTo take it out again: npx ${PLUGIN} undo`;
}

function undone(files: string[]): string {
  return `Removed from ${files.join(", ") || "nothing: it was gone already"}.`;
}

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

main(process.argv.slice(2)).catch((wrong: unknown) => {
  process.stderr.write(`${PLUGIN}: ${wrong instanceof Error ? wrong.message : String(wrong)}\n`);
  process.exitCode = wrong instanceof Refusal ? 1 : WRONG_USAGE;
});
