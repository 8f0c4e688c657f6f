/** Reader of JavaScript, TypeScript and JSON that knows just enough to find a property of an object, and changes nothing. */

/** The source of a file, twice more at the same length: with its comments blank, and with its strings masked as well. */
export interface Source {
  text: string;
  uncommented: string;
  code: string;
}

export interface Property {
  name: string;
  /** Where its value begins; that of a shorthand is where the property ends. */
  value: number;
}

const MASK = "\u0001"; // of strings: neither white space nor a sign of the language
// What a slash after these signs begins is a regular expression, and otherwise a division.
const TOKEN = /\/\/[^\n]*|\/\*[^]*?\*\/|"(?:\\[^]|[^"\\\n])*"|'(?:\\[^]|[^'\\\n])*'|`(?:\\[^]|[^`\\])*`|(?<=(?:^|[(,=:[!&|?{};])\s*)\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\[\n])+\/[a-z]*/g;

export function sourceOf(text: string): Source {
  const isComment = (token: string) => /^\/[/*]/.test(token);
  const blank = (token: string, by: string) => token.replace(/[^\r\n]/g, by);
  return {
    text,
    uncommented: text.replace(TOKEN, (token) => (isComment(token) ? blank(token, " ") : token)),
    code: text.replace(TOKEN, (token) => blank(token, isComment(token) ? " " : MASK)),
  };
}

/** The properties of the object that begins at `open`, or null if it never ends. */
export function propertiesOf({ uncommented, code }: Source, open: number): Property[] | null {
  const properties: Property[] = [];
  let depth = 0;
  let isNext = false;
  for (let at = open; at < code.length; at++) {
    const sign = code[at]!;
    if (isNext && !/[\s}]/.test(sign)) properties.push(propertyAt(uncommented, at));
    isNext = (isNext && /\s/.test(sign)) || (depth === 1 && sign === ",") || (at === open && sign === "{");
    if ("{[(".includes(sign)) depth += 1;
    if ("}])".includes(sign)) depth -= 1;
    if (depth === 0) return properties;
  }
  return null;
}

/** Where the next sign of the language stands. */
export function nextSign({ code }: Source, from: number): number {
  return from + /^\s*/.exec(code.slice(from))![0].length;
}

function propertyAt(uncommented: string, at: number): Property {
  const found = /^(?:(["'])(?<quoted>[^"'\n]*)\1|(?<plain>\.\.\.|[\w$]*))\s*(?<colon>:)?\s*/.exec(uncommented.slice(at))!;
  return { name: found.groups!.quoted ?? found.groups!.plain ?? "", value: at + found[0].length };
}
