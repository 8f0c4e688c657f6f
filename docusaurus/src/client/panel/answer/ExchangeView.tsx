/** One question and its outcome. Every text is rendered as text, never as HTML. */
import { useEffect, useState } from "react";
import type { Answer, Problem, Sentence } from "../../stream.js";
import type { Exchange } from "../conversation.js";
import { useGuide } from "../Guide.js";
import { linkTo, plainText } from "../sharing.js";
import { detailOf, fill, percentOf, timeFrom } from "../wording.js";
import { Copy } from "./Copy.js";
import { PlaceLink } from "./PlaceLink.js";
import { Thumbs } from "./Thumbs.js";
import { Told } from "./Told.js";

export function ExchangeView({ exchange, retry }: { exchange: Exchange; retry?: (() => void) | undefined }) {
  const { question, selection, sentences, outcome } = exchange;
  const begun = sentences.length > 0;
  return (
    <article className="affidavit-exchange">
      <h3 dir="auto">{question}</h3>
      {selection && <blockquote className="affidavit-about" dir="auto">{selection}</blockquote>}
      {!outcome && begun && <Told text={joined(sentences)} citations={sentences.flatMap(({ citations }) => citations)} />}
      {outcome?.outcome === "answered" && <Answered answer={outcome} />}
      {outcome?.outcome === "refused" && <Refused answer={outcome} begun={begun} />}
      {(outcome?.outcome === "answered" || outcome?.outcome === "refused") && <Share exchange={exchange} answer={outcome} />}
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

function Share({ exchange, answer }: { exchange: Exchange; answer: Answer }) {
  const { texts } = useGuide();
  const text = () => plainText(exchange.question, answer, texts);
  return (
    <p className="affidavit-actions">
      {answer.outcome === "answered" && <Copy text={text} label={texts.copyAnswer} done={texts.copied} />}
      <Copy text={() => linkTo(exchange, location.href)} label={texts.copyLink} done={texts.linkCopied} />
      <Thumbs queryId={answer.query_id} />
    </p>
  );
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
          <ul role="list">{answer.nearest.map((place, index) => <li key={index} dir="auto"><PlaceLink place={place} excerpt="" /></li>)}</ul>
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

/** As the engine joins them: a block of code begins on a line of its own. */
function joined(sentences: Sentence[]): string {
  return sentences.map(({ text }) => (text.startsWith("```") ? "\n" : " ") + text).join("").slice(1);
}
