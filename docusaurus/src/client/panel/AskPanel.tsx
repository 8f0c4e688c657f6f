import { type KeyboardEvent, useEffect, useReducer, useRef, useState } from "react";
import type { Texts } from "../../texts/en.js";
import type { Site } from "../site.js";
import { ask, judge } from "../stream.js";
import { ExchangeView } from "./answer/ExchangeView.js";
import { type Asking, converse, type Exchange } from "./conversation.js";
import { examples } from "./examples.js";
import { Form } from "./Form.js";
import { Guide, type Following } from "./Guide.js";
import type { Target } from "./visit.js";
import { fill, nameOf, unique } from "./wording.js";

interface Props {
  site: Site;
  texts: Texts;
  selection: string | undefined;
  openings: number; // each brings its selection and the focus
  shared: Asking | undefined; // of a link, which this opening asks
  isModal: boolean;
  targetOf: (url: string) => Target | undefined;
  close: () => void;
  follow: (to: Following) => void;
}

export function AskPanel({ site, texts, selection, openings, shared, isModal, targetOf, close, follow }: Props) {
  const { exchanges, status, tell, put, stop, isBusy } = useConversation(site, texts);
  const thread = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const [first, ...more] = Array.from(thread.current!.children as HTMLCollectionOf<HTMLElement>);
    thread.current!.scrollTop = (more.at(-1)?.offsetTop ?? 0) - (first?.offsetTop ?? 0); // scrollIntoView would scroll the page too
  }, [exchanges.length, exchanges.at(-1)?.outcome]);
  useEffect(() => {
    if (shared && !isBusy) put(shared);
  }, [openings, shared]);

  function retry(exchange: Exchange): void {
    thread.current?.focus(); // its button is about to vanish
    put(exchange, exchange.id);
  }

  function onKeyDown(event: KeyboardEvent): void {
    if (event.key === "Escape" && !event.nativeEvent.isComposing) close();
  }

  const followed = (to: Omit<Following, "tell">) =>
    follow({ ...to, tell: (isFound) => tell(fill(isFound ? texts.opened : texts.notFound, { place: to.name })) });

  return (
    <Guide.Provider value={{ texts, locale: site.locale, targetOf, follow: followed, tell, judge: (said) => judge(site.path, said) }}>
      <section className="affidavit" role="dialog" aria-modal={isModal} aria-labelledby="affidavit-title" onKeyDown={onKeyDown}>
        <header>
          <h2 id="affidavit-title">{texts.ask}</h2>
          <button type="button" className="affidavit-close" aria-label={texts.close} title={texts.close} onClick={close}>
            <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M3 3l10 10M13 3L3 13" /></svg>
          </button>
        </header>
        <div className="affidavit-thread" ref={thread} tabIndex={0} role="region" aria-label={texts.thread}>
          {exchanges.length ? exchanges.map((exchange) => (
            <ExchangeView key={exchange.id} exchange={exchange} retry={isBusy ? undefined : () => retry(exchange)} />
          )) : <Introduction texts={texts} put={put} />}
        </div>
        <p id="affidavit-status" className={`affidavit-status${isBusy ? " affidavit-busy" : ""}${status.isSpoken ? " affidavit-spoken" : ""}`} role="status" aria-live="polite">{status.text}</p>
        <Form texts={texts} selection={selection} openings={openings} isBusy={isBusy} isModal={isModal} put={put} stop={stop} tell={tell} />
      </section>
    </Guide.Provider>
  );
}

function Introduction({ texts, put }: { texts: Texts; put: (asked: Asking) => void }) {
  const [questions] = useState(() => examples(texts));
  return (
    <div className="affidavit-intro">
      <p>{texts.intro}</p>
      <p>{texts.record}</p>
      {questions.length > 0 && <h3>{texts.examples}</h3>}
      {questions.map((question) => <button key={question} type="button" dir="auto" onClick={() => put({ question })}>{question}</button>)}
    </div>
  );
}

/** All state of the panel, discarded when it closes. */
function useConversation(site: Site, texts: Texts) {
  const [exchanges, say] = useReducer(converse, []);
  const [status, setStatus] = useState({ text: "", isSpoken: false });
  const tell = (text: string) => setStatus({ text, isSpoken: false });
  const count = useRef(0);
  const current = useRef<AbortController>(undefined);
  const last = exchanges.at(-1);
  const isBusy = last !== undefined && !last.outcome;
  useEffect(() => () => current.current?.abort(), []);

  async function put({ question, query, selection }: Asking, insteadOf?: number): Promise<void> {
    const id = (count.current += 1);
    const left = (current.current = new AbortController()).signal;
    say({ type: "asked", id, question, query, selection, insteadOf });
    tell(texts.looking);
    const asked = { query: query ?? question, selected_text: selection ?? null };
    const outcome = await ask(site.path, asked, {
      sources: (places) => {
        say({ type: "sources", id, places });
        tell(fill(texts.reading, { places: unique(places.map(nameOf)).join(" · ") }));
      },
      sentence: (sentence) => say({ type: "sentence", id, sentence }),
    }, left);
    if (left.aborted) return;
    say({ type: "ended", id, outcome });
    setStatus({ text: summaryOf(outcome, texts), isSpoken: true }); // who sees it, sees it above already
  }

  function stop(): void {
    current.current?.abort();
    if (last) say({ type: "ended", id: last.id, outcome: { outcome: "stopped" } });
    setStatus({ text: texts.stopped, isSpoken: true });
  }

  return { exchanges, status, tell, put, stop, isBusy };
}

function summaryOf(outcome: Awaited<ReturnType<typeof ask>>, texts: Texts): string {
  if (outcome.outcome === "failed") return fill(texts.failed, { title: texts[`problem.${outcome.kind}`] });
  return outcome.outcome === "refused" ? texts.refused : fill(texts.answered, { count: outcome.citations.length });
}
