#!/usr/bin/env node
/** The command `affidavit-gateway`: start, log, graceful shutdown. */
import { createHmac, randomBytes } from "node:crypto";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import type { Ended } from "./gateway.js";
import { gatewayServer, type Running } from "./server.js";
import { HELP, settingsOf, UsageError, type Settings } from "./settings.js";

const WRONG_USAGE = 2;
const SALT = randomBytes(32); // of this run alone, so that nobody can find an address by trying all

async function main(): Promise<void> {
  const settings = settingsOf(process.argv.slice(2), process.env);
  if (!settings) {
    process.stdout.write(HELP);
    return;
  }
  const running = configured(settings);
  running.server.listen(settings.port, settings.host);
  await once(running.server, "listening");
  const { address, port, family } = running.server.address() as AddressInfo;
  const host = family === "IPv6" ? `[${address}]` : address;
  log("ready", { url: `http://${host}:${port}${settings.site?.baseUrl ?? "/"}` });
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => void stop(running, signal));
}

/** Reports the settings that only the server can validate. */
function configured(settings: Settings): Running {
  try {
    return gatewayServer({ ...settings, report, warn: (text) => log("warning", { text }) });
  } catch (wrong) {
    throw new UsageError(wrong instanceof Error ? wrong.message : String(wrong));
  }
}

async function stop(running: Running, signal: string): Promise<void> {
  log("stopping", { signal });
  await running.stop();
  log("stopped", {});
}

/** Access log: one line for each request, without its question, and with a pseudonym of the reader. */
function report({ status, ms, requestId, reader, problem, cause }: Ended): void {
  const pseudonym = reader && createHmac("sha256", SALT).update(reader).digest("hex").slice(0, 12);
  log("ask", { status, ms, request_id: requestId, reader: pseudonym, problem, cause: cause || undefined });
}

function log(event: string, told: Record<string, unknown>): void {
  process.stdout.write(`${JSON.stringify({ time: new Date().toISOString(), event, ...told })}\n`);
}

main().catch((wrong: unknown) => {
  const isUsage = wrong instanceof UsageError;
  const text = wrong instanceof Error ? wrong.message : "unknown";
  process.stderr.write(`affidavit-gateway: ${text}\n${isUsage ? "See affidavit-gateway --help.\n" : ""}`);
  process.exit(isUsage ? WRONG_USAGE : 1);
});
