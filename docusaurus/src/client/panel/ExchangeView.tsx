/** One question and its outcome. Every text is rendered as text, never as HTML. */
import { type MouseEvent, type ReactNode, useEffect, useState } from "react";
import type { Answer, Citation, Place, Problem, Sentence } from "../stream.js";
import { pageLabel, parts } from "./citing.js";
import type { Exchange } from "./conversation.js";
import { useGuide } from "./Guide.js";
import { detailOf, fill, nameOf, percentOf, timeFrom } from "./wording.js";

export function ExchangeView({ exchange, retry }: { exchange: Exchange; retry?: (() => void) | undefined }) {
  const { question, selection, sentences, outcome } = exchange;
  const begun = sentences.length > 0;
  return (
    <article className="affidavit-exchange">
      <h3>{question}</h3>
      {selection && <blockquote className="affidavit-about">{selection}</blockquote>}
      {!outcome && begun && <Told text={joined(sentences)} citations={sentences.flatMap(({ citations }) => citations)} />}
      {outcome?.outcome === "answered" && <Answered answer={outcome} />}
      {outcome?.outcome === "refused" && <Refused answer={outcome} begun={begun} />}
      {outcome?.outcome === "failed" && <Failed problem={outcome} begun={begun} retry={retry} />}
      {outcome?.outcome === "stopped" && <StoppedNote retry={retry} />}
    </article>
  );
}

function Answered({ answer }: { answer: Answer }) {
  const { texts } = useGuide();
  const { confidence_level: level, confidence_score: score } = answer;
  const confidence = level && fill(texts[level], { percent: percentOf(score ?? 0) });
  return (
    <>
      {level === "low" && <p className="affidavit-warning"><strong>{confidence}.</strong> {texts.lowMeans}</p>}
      <Told text={answer.answer} citations={answer.citations} />
      {level !== "low" && confidence && <p className={`affidavit-level affidavit-${level}`}>{confidence}</p>}
      {answer.model_used === "extractive" && <p className="affidavit-small">{texts.extractive}</p>}
    </>
  );
}

function Told({ text, citations }: { text: string; citations: Citation[] }) {
  const { texts } = useGuide();
  const said = parts(text, citations);
  const words = said.filter((part) => typeof part === "string").join(" ");
  return (
    <>
      <p className="affidavit-answer">
        {said.map((part, index) => (typeof part === "string" ? part : <Mark key={index} citation={part} />))}
      </p>
      {citations.length > 0 && <h4>{texts.sources}</h4>}
      <ol className="affidavit-sources" role="list">
        {citations.map((citation) => (
          <li key={citation.n}>
            <span className="affidavit-number" aria-hidden="true">{citation.n}</span>
            <div>
              <PlaceLink place={citation} excerpt={citation.excerpt} />
              {pageLabel(citation) && <span className="affidavit-small">{fill(texts.page, { page: citation.page })}</span>}
              {!words.includes(citation.excerpt) && <blockquote>{citation.excerpt}</blockquote>}
            </div>
          </li>
        ))}
      </ol>
    </>
  );
}

function Mark({ citation }: { citation: Citation }) {
  const { texts } = useGuide();
  const label = `${fill(texts.source, { n: citation.n })}: ${nameOf(citation)}`;
  return <sup><PlaceLink place={citation} excerpt={citation.excerpt} label={label}>{citation.n}</PlaceLink></sup>;
}

function Refused({ answer, begun }: { answer: Answer; begun: boolean }) {
  const { texts } = useGuide();
  const why = texts[`reason.${answer.reason}` as keyof typeof texts] ?? answer.answer;
  return (
    <div className="affidavit-refusal">
      <p className="affidavit-title">{texts.refused}</p>
      <p>{why}</p>
      {begun && <TakenBack />}
      {answer.nearest.length > 0 && (
        <>
          <h4>{texts.nearest}</h4>
          <ul role="list">{answer.nearest.map((place, index) => <li key={index}><PlaceLink place={place} excerpt="" /></li>)}</ul>
        </>
      )}
    </div>
  );
}

function Failed({ problem, begun, retry }: { problem: Problem; begun: boolean; retry?: (() => void) | undefined }) {
  const { texts, locale } = useGuide();
  return (
    <div className="affidavit-problem">
      <p className="affidavit-title">{texts[`problem.${problem.kind}`]}</p>
      <p>{detailOf(problem, texts, locale)}</p>
      {begun && <TakenBack />}
      {problem.retryable && <Retry waitS={problem.waitS ?? 0} retry={retry} />}
      {problem.requestId && <p className="affidavit-small">{fill(texts.request, { id: problem.requestId })}</p>}
    </div>
  );
}

function StoppedNote({ retry }: { retry?: (() => void) | undefined }) {
  const { texts } = useGuide();
  return (
    <>
      <p className="affidavit-small">{texts.stopped}</p>
      <Retry waitS={0} retry={retry} />
    </>
  );
}

function TakenBack() {
  return <p className="affidavit-small">{useGuide().texts.takenBack}</p>;
}

/** Disabled until the wait of Retry-After is over. */
function Retry({ waitS, retry }: { waitS: number; retry?: (() => void) | undefined }) {
  const { texts, locale } = useGuide();
  const [leftS, setLeftS] = useState(waitS);
  useEffect(() => {
    const until = Date.now() + waitS * 1000;
    const timer = setInterval(() => setLeftS(Math.max(0, Math.ceil((until - Date.now()) / 1000))), 1000);
    return () => clearInterval(timer);
  }, [waitS]);
  return (
    <>
      {leftS > 0 && <p>{fill(texts.wait, { time: timeFrom(leftS, locale) })}</p>}
      <button type="button" disabled={leftS > 0 || !retry} onClick={retry}>{texts.retry}</button>
    </>
  );
}

interface PlaceLinkProps {
  place: Place;
  excerpt: string;
  label?: string;
  children?: ReactNode;
}

/** Pages of this site open through its router, others in a new tab; an address that is not http(s) is not a link. */
function PlaceLink({ place, excerpt, label, children = nameOf(place) }: PlaceLinkProps) {
  const { targetOf, follow } = useGuide();
  const target = targetOf(place.url);
  if (!target) return <span>{children}</span>;
  if (!target.isOnSite) return <a href={target.href} target="_blank" rel="noopener noreferrer" aria-label={label}>{children}</a>;

  function onClick(event: MouseEvent): void {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    follow({ href: target!.href, name: nameOf(place), excerpt });
  }
  return <a href={target.href} onClick={onClick} aria-label={label}>{children}</a>;
}

function joined(sentences: Sentence[]): string {
  return sentences.map(({ text }) => text).join(" ");
}
