#!/usr/bin/env node
// Debian's Firefox, as Playwright starts one that speaks WebDriver BiDi. Between the two it answers the commands that
// this Firefox does not have yet, without which Playwright opens no page.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import WebSocket from "ws";

const UNKNOWN = ["emulation.setMediaFeaturesOverride"];
const LISTENING = /WebDriver BiDi listening on (ws:\/\/\S+)/;

const firefox = spawn(process.env.FIREFOX || "firefox-esr", process.argv.slice(2), { stdio: ["inherit", "inherit", "pipe"] });
firefox.on("exit", (code) => process.exit(code ?? 1));
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => firefox.kill(signal));
for await (const line of createInterface(firefox.stderr)) {
  const [, address] = LISTENING.exec(line) ?? [];
  console.error(address ? `WebDriver BiDi listening on ${await between(address)}` : line);
}

async function between(address) {
  const server = new WebSocket.Server({ host: "127.0.0.1", port: 0 });
  server.on("connection", (player, { url }) => join(player, new WebSocket(address + url)));
  await new Promise((resolve) => server.once("listening", resolve));
  return `ws://127.0.0.1:${server.address().port}`;
}

function join(player, browser) {
  const waiting = [];
  player.on("message", (bytes) => {
    const { id, method } = JSON.parse(bytes);
    if (UNKNOWN.includes(method)) player.send(JSON.stringify({ type: "success", id, result: {} }));
    else if (browser.readyState === WebSocket.OPEN) browser.send(String(bytes));
    else waiting.push(String(bytes));
  });
  browser.on("open", () => waiting.forEach((text) => browser.send(text)));
  browser.on("message", (bytes) => player.send(String(bytes)));
  player.on("close", () => browser.close());
  browser.on("close", () => player.close());
}
