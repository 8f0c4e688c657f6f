import { Fragment } from "react";

// `code`, **strong** and *emphasis*. No underscores and nothing inside of words: names such as __init__ and powers such
// as 2**3**4 stay as they are in the book.
const MARKED = /(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)|(?<![\w*])(\*{1,2})([^*\s](?:[^*\n]*[^*\s])?)\3(?![\w*])/g;

/** A sentence with its Markdown. Only elements are made of it that are named here, and their text is text. */
export function Marked({ text }: { text: string }) {
  const shown = [];
  let from = 0;
  for (const found of text.matchAll(MARKED)) {
    const [all, , code, stars, words] = found;
    shown.push(text.slice(from, found.index), code ? <code>{code.trim()}</code> : stars === "*" ? <em>{words}</em> : <strong>{words}</strong>);
    from = found.index + all.length;
  }
  shown.push(text.slice(from));
  return shown.map((part, index) => <Fragment key={index}>{part}</Fragment>);
}
