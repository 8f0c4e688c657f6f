import assert from "node:assert/strict";
import { test } from "node:test";
import { bookAt } from "../../src/book.js";

const BOOKS = { book: "course-de", versions: { "2.0": "kurs-zwei" } };
const VERSIONS = [
  { name: "current", isLast: true, path: "/book/de/docs" },
  { name: "2.0", isLast: false, path: "/book/de/docs/2.0" },
  { name: "1.0", isLast: false, path: "/book/de/docs/1.0" },
  { name: "1.0", isLast: false, path: "/book/de/wéek/1.0/" },
];

const PLACES: [string, string][] = [
  ["/book/de/docs", "course-de"],
  ["/book/de/docs/gait", "course-de"],
  ["/book/de/", "course-de"],
  ["/book/de/blog/2.0", "course-de"],
  ["/book/de/docs/2.0", "kurs-zwei"],
  ["/book/de/docs/2.0/gait", "kurs-zwei"],
  ["/book/de/docs/2.0.1", "course-de"],
  ["/book/de/docs/1.0/gait", "course-de-1-0"],
  ["/book/de/w%C3%A9ek/1.0/one", "course-de-1-0"],
];
for (const [place, book] of PLACES) {
  test(`a question on ${place} goes to ${book}`, () => assert.equal(bookAt(BOOKS, VERSIONS, place), book));
}
