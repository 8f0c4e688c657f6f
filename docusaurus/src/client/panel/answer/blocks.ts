/** An answer's text as paragraphs, code and tables. What is not surely code or a table stays text, word for word. */
import type { Citation } from "../../stream.js";
import { type Part, parts } from "./citing.js";

export interface Row {
  cells: string[];
  cited: Citation[];
}

export type Block =
  | { kind: "text"; parts: Part[] }
  | { kind: "code"; text: string; cited: Citation[] }
  | { kind: "table"; header: Row | undefined; rows: Row[] };

interface Statement {
  text: string;
  cited: Citation[];
}

const FENCED = /^(`{3,})[^\n`]*\n([^]*?)\n\1$/m;
const BETWEEN_CELLS = " | ";

export function blocks(text: string, citations: Citation[]): Block[] {
  return statements(parts(text, citations)).flatMap(blocksOf).reduce(joined, []);
}

/** Each text with the citations that follow it. */
function statements(among: Part[]): Statement[] {
  const found: Statement[] = [];
  for (const part of among) {
    if (typeof part === "string") found.push({ text: part, cited: [] });
    else (found.at(-1) ?? found[found.push({ text: "", cited: [] }) - 1]!).cited.push(part);
  }
  return found;
}

function blocksOf({ text, cited }: Statement): Block[] {
  const fenced = FENCED.exec(text);
  if (!fenced) return [rowOf(text.trim(), cited) ?? { kind: "text", parts: [text, ...cited] }];
  const [all, , code = ""] = fenced;
  const before = text.slice(0, fenced.index);
  const after = text.slice(fenced.index + all.length);
  const isLast = !after.trim();
  return [
    ...(before.trim() ? blocksOf({ text: before, cited: [] }) : []),
    { kind: "code", text: code, cited: isLast ? cited : [] },
    ...(isLast ? [] : blocksOf({ text: after, cited })),
  ];
}

/** A row of a table: the engine says its cells with the names of their columns, and cites the header and the row. */
function rowOf(text: string, cited: Citation[]): Block | undefined {
  const [first, second, ...more] = cited;
  const row = second ?? first;
  const header = second && { cells: cellsOf(first!.excerpt), cited: [first!] };
  const cells = cellsOf(row?.excerpt ?? "");
  const isRow = cells.length > 1 && !more.length && text === (header ? said(header.cells, cells) : row!.excerpt);
  return isRow ? { kind: "table", header, rows: [{ cells, cited: [row!] }] } : undefined;
}

function cellsOf(line: string): string[] {
  return line.includes("\n") ? [] : ` ${line} `.split(BETWEEN_CELLS).map((cell) => cell.trim()); // an empty last cell counts
}

/** As the engine says a row. */
function said(names: string[], cells: string[]): string | undefined {
  if (names.length !== cells.length) return undefined;
  return cells.map((cell, at) => cell && (names[at] ? `${names[at]}: ${cell}` : cell)).filter(Boolean).join("; ");
}

/** Sentences go on in one paragraph, and rows of one header in one table. */
function joined(before: Block[], next: Block): Block[] {
  const last = before.at(-1);
  const others = before.slice(0, -1);
  if (next.kind === "text" && last?.kind === "text") return [...others, { kind: "text", parts: [...last.parts, ...next.parts] }];
  if (next.kind === "text") return [...before, { kind: "text", parts: begun(next.parts) }];
  const isSame = next.kind === "table" && last?.kind === "table" && shape(last) === shape(next);
  return isSame ? [...others, { ...last, rows: [...last.rows, ...next.rows] }] : [...before, next];
}

function begun([first, ...rest]: Part[]): Part[] {
  return typeof first === "string" ? [first.trimStart(), ...rest] : [first!, ...rest];
}

function shape({ header, rows }: Block & { kind: "table" }): string {
  return header ? header.cells.join("\n") : String(rows[0]!.cells.length);
}
