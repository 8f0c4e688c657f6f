/** What the book says, with its sources. Every text is rendered as text, never as HTML. */
import { Fragment, type ReactNode } from "react";
import type { Citation } from "../../stream.js";
import { useGuide } from "../Guide.js";
import { fill, nameOf } from "../wording.js";
import { type Block, blocks, type Row } from "./blocks.js";
import { distinct, numberOf, pageLabel } from "./citing.js";
import { Copy } from "./Copy.js";
import { Marked } from "./Marked.js";
import { PlaceLink } from "./PlaceLink.js";

const INDENTED = /\n[ \t]/; // only code has such lines

interface Props {
  text: string;
  citations: Citation[];
}

export function Told({ text, citations }: Props) {
  const said = blocks(text, citations);
  const listed = distinct(citations);
  const marks = (cited: Citation[]) => cited.map((one) => <Mark key={one.n} citation={one} n={numberOf(one, listed)} />);
  return (
    <>
      <div className="affidavit-answer">{said.map((block, index) => <Shown key={index} block={block} marks={marks} />)}</div>
      <Sources listed={listed} said={said} />
    </>
  );
}

function Shown({ block, marks }: { block: Block; marks: (cited: Citation[]) => ReactNode }) {
  if (block.kind === "code") return <Code text={block.text}>{marks(block.cited)}</Code>;
  if (block.kind === "table") return <Table header={block.header} rows={block.rows} marks={marks} />;
  return (
    <p dir="auto">
      {block.parts.map((part, index) => (
        typeof part === "string" ? <Marked key={index} text={part} /> : <Fragment key={index}>{marks([part])}</Fragment>
      ))}
    </p>
  );
}

function Code({ text, children }: { text: string; children: ReactNode }) {
  const { texts } = useGuide();
  return (
    <div className="affidavit-code">
      <pre dir="ltr" tabIndex={0}><code>{text}</code></pre>
      <p><Copy text={() => text} label={texts.copyCode} done={texts.copied} />{children}</p>
    </div>
  );
}

function Table({ header, rows, marks }: { header: Row | undefined; rows: Row[]; marks: (cited: Citation[]) => ReactNode }) {
  const line = ({ cells, cited }: Row, Cell: "th" | "td") => cells.map((cell, at) => (
    <Cell key={at} dir="auto"><Marked text={cell} />{at === cells.length - 1 && marks(cited)}</Cell>
  ));
  return (
    <div className="affidavit-table" tabIndex={0}>
      <table>
        {header && <thead><tr>{line(header, "th")}</tr></thead>}
        <tbody>{rows.map((row, index) => <tr key={index}>{line(row, "td")}</tr>)}</tbody>
      </table>
    </div>
  );
}

function Mark({ citation, n }: { citation: Citation; n: number }) {
  const { texts } = useGuide();
  const label = `${fill(texts.source, { n })}: ${nameOf(citation)}`;
  return <sup><PlaceLink place={citation} excerpt={citation.excerpt} label={label}>{n}</PlaceLink></sup>;
}

function Sources({ listed, said }: { listed: Citation[]; said: Block[] }) {
  const { texts } = useGuide();
  if (!listed.length) return null;
  return (
    <>
      <h4>{texts.sources}</h4>
      <ol className="affidavit-sources" role="list">
        {listed.map((citation, index) => (
          <li key={index}>
            <span className="affidavit-number" aria-hidden="true">{index + 1}</span>
            <div dir="auto">
              <PlaceLink place={citation} excerpt={citation.excerpt} />
              {pageLabel(citation) && <span className="affidavit-small">{fill(texts.page, { page: citation.page })}</span>}
              {!said.some((block) => shows(block, citation)) && <Quote text={citation.excerpt} />}
            </div>
          </li>
        ))}
      </ol>
    </>
  );
}

function Quote({ text }: { text: string }) {
  return <blockquote dir="auto" className={INDENTED.test(text) ? "affidavit-of-code" : ""}>{text}</blockquote>;
}

/** Whether the quote is in the answer itself. */
function shows(block: Block, { excerpt }: Citation): boolean {
  if (block.kind === "code") return block.text.includes(excerpt);
  if (block.kind === "text") return block.parts.some((part) => typeof part === "string" && part.includes(excerpt));
  return [...block.rows, ...(block.header ? [block.header] : [])].some(({ cited }) => cited[0]!.excerpt === excerpt);
}
