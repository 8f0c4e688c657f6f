// Usage: node run.mjs     (`make docs-run`)
// The built manual, with an engine that answers from it: its export becomes the book `manual` of an engine with a folder of its
// own, and the plugin's gateway shows the site. Ctrl-C ends all of it. AFFIDAVIT names the engine's command, if it is elsewhere;
// the gateway's own variables, such as AFFIDAVIT_GATEWAY_PORT, hold too.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, openSync, writeFileSync } from "node:fs";
import path from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

const SITE = path.dirname(fileURLToPath(import.meta.url));
const AFFIDAVIT = process.env.AFFIDAVIT ?? path.join(SITE, "../../.venv/bin/affidavit");
const GATEWAY = path.join(SITE, "../../docusaurus/lib/gateway/main.js");
const DATA = path.join(SITE, ".affidavit");
const LOG = path.join(DATA, "run.log");
const KEY_FILE = path.join(DATA, "gateway.key");
const ENVIRONMENT = {
  ...process.env,
  AFFIDAVIT_DATA_DIR: DATA,
  AFFIDAVIT_DATABASE__URL: "", // the embedded one, never somebody's server
  DATABASE_URL: "",
  AFFIDAVIT_BOOKS__DEFAULT: "manual",
  AFFIDAVIT_LIMITS__ANONYMOUS: "300/hour", // all readers are on this machine
  AFFIDAVIT_KEY_FILE: KEY_FILE,
};

const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => stop.abort());
const stopped = once(stop.signal, "abort");
const started = [];

try {
  await Promise.race([show(), stopped]);
} finally {
  for (const { child } of started) child.kill("SIGTERM");
  await Promise.all(started.map(({ ended }) => ended));
}

async function show() {
  await done(start("inherit", AFFIDAVIT, "ingest", "build/affidavit-content.json", "--book", "manual", "--title", "The manual"));
  if (!existsSync(KEY_FILE)) await makeKey();
  const log = openSync(LOG, "w", 0o600);
  const engine = start(log, AFFIDAVIT, "serve", "--port", "0");
  const gateway = start(log, process.execPath, GATEWAY, "--book", "manual", "--engine", await said(engine, /ready at (\S+)\n/));
  console.log(`The manual is at ${await said(gateway, /"url":"([^"]+)"/)}\n(Press Ctrl-C to stop everything.)`);
  await Promise.race([engine, gateway].map(done));
}

async function makeKey() {
  const creating = start("inherit", AFFIDAVIT, "keys", "create", "--client", "manual", "--book", "manual");
  const key = await text(creating.child.stdout);
  await done(creating);
  writeFileSync(KEY_FILE, key, { mode: 0o600 });
}

function start(errors, command, ...words) {
  stop.signal.throwIfAborted();
  const child = spawn(command, words, { cwd: SITE, env: ENVIRONMENT, stdio: ["ignore", "pipe", errors] });
  const ended = once(child, "close").then(([code]) => code);
  started.push({ child, ended });
  return { name: path.basename(command) + " " + words[0], child, ended };
}

async function done({ name, ended }) {
  const code = await ended;
  if (code !== 0) throw new Error(`${name} ended with ${code}. What it said is above, or in ${LOG}.`);
}

/** What it prints of itself once it is ready; the rest is let go. */
async function said({ name, child, ended }, pattern) {
  let heard = "";
  const ready = new Promise((resolve) => {
    child.stdout.on("data", (part) => pattern.test((heard += part)) && resolve());
  });
  await Promise.race([ready, ended]);
  child.stdout.removeAllListeners("data").resume();
  const found = pattern.exec(heard);
  if (!found) throw new Error(`${name} ended before it was ready. What it said is in ${LOG}.`);
  return found[1];
}
