/** The questions and their outcomes, kept only while the panel is open. */
import type { Answer, Place, Problem, Sentence } from "../stream.js";

export interface Exchange {
  id: number;
  question: string;
  query?: string | undefined; // what is sent, if the question on the page is a button's label
  selection?: string | undefined;
  places: Place[];
  sentences: Sentence[];
  outcome?: Answer | Problem | { outcome: "stopped" };
}

export type Asking = Pick<Exchange, "question" | "query" | "selection">;

export type Said =
  | ({ type: "asked"; id: number; insteadOf?: number | undefined } & Asking)
  | { type: "sources"; id: number; places: Place[] }
  | { type: "sentence"; id: number; sentence: Sentence }
  | { type: "ended"; id: number; outcome: NonNullable<Exchange["outcome"]> };

export function converse(exchanges: Exchange[], said: Said): Exchange[] {
  if (said.type === "asked") {
    const { id, question, query, selection, insteadOf } = said;
    const kept = exchanges.filter((exchange) => exchange.id !== insteadOf);
    return [...kept, { id, question, query, selection, places: [], sentences: [] }];
  }
  return exchanges.map((exchange) => (exchange.id === said.id && !exchange.outcome ? heard(exchange, said) : exchange));
}

function heard(exchange: Exchange, said: Exclude<Said, { type: "asked" }>): Exchange {
  if (said.type === "sources") return { ...exchange, places: said.places };
  if (said.type === "sentence") return { ...exchange, sentences: [...exchange.sentences, said.sentence] };
  return { ...exchange, outcome: said.outcome };
}
