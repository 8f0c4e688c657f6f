/** Daily budget of questions for the whole site (UTC). A file keeps the count, so that a restart does not reset it; if the
 * count cannot be written, the question is refused. */
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { Failure } from "../problems.js";

const DAY_MS = 86_400_000;

interface Count {
  day: string;
  asked: number;
}

export class DailyBudget {
  readonly #perDay: number;
  readonly #file: string | undefined;
  #count: Count;

  /** Fails if the file can be neither read nor written: better now than at the first question. */
  constructor(perDay: number, file?: string, nowMs = Date.now()) {
    this.#perDay = perDay;
    this.#file = file;
    this.#count = (file && stored(file)) || { day: dayOf(nowMs), asked: 0 };
    this.#store();
  }

  /** Counts a question and says 0, or says how many seconds no more are taken. */
  waitS(nowMs = Date.now()): number {
    const day = dayOf(nowMs);
    const asked = this.#count.day === day ? this.#count.asked : 0;
    if (asked >= this.#perDay) return Math.ceil((DAY_MS - (nowMs % DAY_MS)) / 1000);
    this.#count = { day, asked: asked + 1 };
    try {
      this.#store();
    } catch {
      throw new Failure("Misconfigured", { cause: "the day's count cannot be written" });
    }
    return 0;
  }

  /** Whoever reads the file meanwhile, or starts after a crash, finds a whole one. */
  #store(): void {
    if (!this.#file) return;
    writeFileSync(`${this.#file}.new`, JSON.stringify(this.#count));
    renameSync(`${this.#file}.new`, this.#file);
  }
}

function stored(file: string): Count | null {
  const text = readIfThere(file);
  if (text === null) return null;
  const { day, asked } = JSON.parse(text) as Partial<Count>;
  if (typeof day !== "string" || !Number.isSafeInteger(asked)) throw new Error(`${file} does not contain the count of a day.`);
  return { day, asked: Number(asked) };
}

function readIfThere(file: string): string | null {
  try {
    return readFileSync(file, "utf8");
  } catch (fault) {
    if ((fault as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw fault;
  }
}

function dayOf(nowMs: number): string {
  return new Date(nowMs).toISOString().slice(0, 10);
}
