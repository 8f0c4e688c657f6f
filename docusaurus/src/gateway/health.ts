/** `/health` as the widgets ask for it: whether the engine is there, answered here, without a key and without a record. */
import type { Engine } from "./engine.js";

type State = "healthy" | "degraded" | "unhealthy";

const WAIT_MS = 2_000;
const FRESH_MS = 2_000; // however many ask, the engine is asked once in that time

export class EngineHealth {
  readonly #address: string;
  #state: Promise<State> | undefined;
  #askedMs = 0;

  constructor(engine: Engine) {
    this.#address = `${engine.base}/readyz`;
  }

  async response(nowMs = Date.now()): Promise<Response> {
    if (!this.#state || nowMs - this.#askedMs >= FRESH_MS) {
      this.#askedMs = nowMs;
      this.#state = stateAt(this.#address);
    }
    const status = await this.#state;
    const body = { status, timestamp: new Date(nowMs).toISOString(), services: { engine: status } };
    return Response.json(body, {
      status: status === "unhealthy" ? 503 : 200,
      headers: { "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff" },
    });
  }
}

/** Which part of the engine is not ready is nothing for readers. */
async function stateAt(address: string): Promise<State> {
  try {
    const response = await fetch(address, { redirect: "manual", signal: AbortSignal.timeout(WAIT_MS) });
    const parts = Object.values((await response.json()) as Record<string, unknown>);
    if (response.status !== 200) return "unhealthy";
    return parts.every((part) => part === "ready") ? "healthy" : "degraded";
  } catch {
    return "unhealthy";
  }
}
