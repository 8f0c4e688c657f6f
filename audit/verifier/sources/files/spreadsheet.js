// The records of a package as CSV, derived from their bundles in one way only.
import { utf8 } from "../basics/bytes.js";
import { canonicalText } from "../basics/canonical.js";

const COLUMNS = [
  "log_id", "query_id", "timestamp", "endpoint", "client_id", "end_user", "session_id", "book_id", "outcome", "reason",
  "http_status", "success", "user_query_text", "selected_text", "answer_text", "citations", "confidence_score",
  "confidence_level", "model_used", "tokens_input", "tokens_output", "total_latency_ms", "error_type", "error_message",
  "details", "index_generation", "code_version", "schema_version",
];

const NAMES = ["month", "leaf_index", ...COLUMNS, "withheld"];

export const heading = () => utf8(`\ufeff${NAMES.join()}\r\n`);

/** @param {import("../proof/bundle.js").Bundle} bundle */
export function lineOf({ row, index, month, commitments }) {
  const withheld = [...(commitments?.keys() ?? [])].sort().join(" ");
  return utf8(`${[month, String(index), ...COLUMNS.map((name) => cell(row[name])), withheld].join()}\r\n`);
}

/** The cells in which two lines differ, under their names.
 * @param {Uint8Array} wanted @param {Uint8Array} line */
export function difference(wanted, line) {
  const cells = [wanted, line].map((each) => cellsOf(new TextDecoder().decode(each)));
  const names = NAMES.filter((_, at) => cells[0][at] !== cells[1][at]);
  const [expected, found] = cells.map((each) => names.map((name) => `${name}: ${each[NAMES.indexOf(name)] ?? ""}`).join("\n"));
  return line.length ? { expected, found } : { expected, found: "no line" };
}

/** The place that a line claims to be of, as text that sorts; "" if it claims none.
 * @param {Uint8Array} line */
export function placeOfLine(line) {
  const [, month, index] = /^([0-9]{4}-[0-9]{2}),([0-9]{1,16}),/.exec(new TextDecoder().decode(line.subarray(0, 32))) ?? [];
  return month ? placeText(month, index) : "";
}

/** @param {string} month @param {number | string} index */
export const placeText = (month, index) => `${month} ${String(index).padStart(16, "0")}`;

/** @param {unknown} value */
function cell(value) {
  if (value === undefined) return "";
  const text = typeof value === "string" ? (/^[=+\-@\t\r]/.test(value) ? `'${value}` : value) : canonicalText(value);
  return /[,"\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {string} line */
function cellsOf(line) {
  const cells = line.replace(/\r\n$/, "").match(/(?:^|,)(?:"(?:[^"]|"")*"|[^,]*)/g) ?? [];
  return cells.map((each) => each.replace(/^,/, "").replace(/^"([^]*)"$/, (_, inside) => inside.replaceAll('""', '"')));
}
