/** Rate limit for each reader, with a moving window: no period of that length has more requests than the rate. */
import { Failure } from "../problems.js";

const RATE = /^([1-9]\d{0,3})\/(second|minute|hour|day)$/;
const WINDOWS_MS = { second: 1_000, minute: 60_000, hour: 3_600_000, day: 86_400_000 };
const READERS_MAX = 50_000; // who asked longest ago is forgotten first; some 20 MB at 30 questions each

export function isRate(written: string): boolean {
  return RATE.test(written);
}

export class Limit {
  readonly #count: number;
  readonly #windowMs: number;
  readonly #askedMs = new Map<string, number[]>();

  constructor(rate: string) {
    const [, count, window] = RATE.exec(rate) ?? [];
    this.#count = Number(count);
    this.#windowMs = WINDOWS_MS[window as keyof typeof WINDOWS_MS];
  }

  /** A question that is turned away does not count: who waits as long as told is let in. */
  take(reader: string, nowMs = Date.now()): void {
    const recent = (this.#askedMs.get(reader) ?? []).filter((askedMs) => askedMs > nowMs - this.#windowMs);
    const oldest = recent[0];
    if (oldest !== undefined && recent.length >= this.#count) {
      throw new Failure("RateLimited", { retryAfterS: Math.ceil((oldest + this.#windowMs - nowMs) / 1000) });
    }
    this.#remember(reader, [...recent, nowMs]);
  }

  #remember(reader: string, askedMs: number[]): void {
    this.#askedMs.delete(reader); // so that it stands last again
    this.#askedMs.set(reader, askedMs);
    if (this.#askedMs.size > READERS_MAX) {
      const [forgotten] = this.#askedMs.keys();
      this.#askedMs.delete(forgotten ?? reader);
    }
  }
}
