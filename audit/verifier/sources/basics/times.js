// Moments and months as they are signed: text in UTC with six decimals, so that two moments compare as their texts do.

const TIME = /^([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.[0-9]{6}Z$/;
const WRITTEN = /^([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:[.,]([0-9]{1,9}))?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)$/;

/** @param {unknown} text @returns {text is string} */
export function isTime(text) {
  const found = typeof text === "string" ? TIME.exec(text) : null;
  if (!found) return false;
  const [year, month, day, hour, minute, second] = found.slice(1).map(Number);
  return year > 0 && month >= 1 && month <= 12 && day >= 1 && day <= daysOf(year, month) && hour < 24 && minute < 60 && second < 60;
}

/** "2026-11" @param {unknown} text @returns {text is string} */
export function isMonth(text) {
  return typeof text === "string" && /^[0-9]{4}-(0[1-9]|1[0-2])$/.test(text) && !text.startsWith("0000");
}

/** Any ISO 8601 text of a moment with its offset, as it is signed; null for anything else.
 * @param {unknown} text */
export function signedTime(text) {
  const found = typeof text === "string" ? WRITTEN.exec(text) : null;
  if (!found) return null;
  const [, day, clock, fraction = "", offset] = found;
  const at = Date.parse(`${day}T${clock.length === 5 ? `${clock}:00` : clock}.000Z`);
  if (Number.isNaN(at) || !new Date(at).toISOString().startsWith(day)) return null;
  const moved = new Date(at - minutesOf(offset) * 60_000).toISOString().slice(0, 19);
  const time = `${moved}.${fraction.slice(0, 6).padEnd(6, "0")}Z`;
  return isTime(time) ? time : null;
}

/** @param {string} offset */
function minutesOf(offset) {
  if (offset === "Z") return 0;
  const minutes = Number(offset.slice(1, 3)) * 60 + Number(offset.slice(3).replace(":", ""));
  return offset.startsWith("-") ? -minutes : minutes;
}

/** @param {number} year @param {number} month */
function daysOf(year, month) {
  const isLeap = year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);
  return [31, isLeap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1];
}
