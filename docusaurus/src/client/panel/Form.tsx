import { type FormEvent, type KeyboardEvent, useEffect, useRef, useState } from "react";
import type { Texts } from "../../texts/en.js";
import type { Asking } from "./conversation.js";
import { fill } from "./wording.js";

// In English whatever the page's language: the engine knows these as questions for what the selection says.
const ABOUT_SELECTION = { explain: "Explain this", summarize: "Summarize", mean: "What does this mean?" } as const;

const QUESTION_CHARACTERS_MAX = 1000; // as the engine counts
const SELECTION_WORDS_MAX = 200;

interface Props {
  texts: Texts;
  selection: string | undefined;
  openings: number;
  isBusy: boolean;
  isModal: boolean;
  put: (asked: Asking) => void;
  stop: () => void;
  tell: (status: string) => void;
}

export function Form({ texts, selection: given, openings, isBusy, isModal, put, stop, tell }: Props) {
  const [question, setQuestion] = useState("");
  const [selection, setSelection] = useState(given);
  const [isWrong, setIsWrong] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (given) setSelection(given);
    field.current?.focus({ preventScroll: true });
  }, [openings, given]);

  function send(event: FormEvent | KeyboardEvent): void {
    event.preventDefault();
    if (isBusy) return;
    const asked = question.trim();
    if (asked) return about({ question: asked });
    setIsWrong(true);
    tell(texts.empty);
    field.current?.focus();
  }

  function about(asked: Asking): void {
    const wrong = tooLong(selection, texts);
    setIsWrong(wrong !== "");
    tell(wrong);
    if (wrong) return field.current?.focus();
    put({ ...asked, selection });
    setQuestion("");
    setSelection(undefined);
    if (isModal) field.current?.blur(); // the keyboard of a phone would cover the answer
  }

  function onKeyDown(event: KeyboardEvent): void {
    const isComposing = event.nativeEvent.isComposing || event.keyCode === 229; // this Enter picks a character (229: Safari)
    if (event.key === "Enter" && !event.shiftKey && !isComposing && !event.repeat) send(event);
  }

  return (
    <form onSubmit={send} autoComplete="off" noValidate>
      {selection && <Selection text={selection} texts={texts} put={isBusy ? undefined : about} drop={() => { setSelection(undefined); field.current?.focus(); }} />}
      <label htmlFor="affidavit-question">{texts.question}</label>
      <div className="affidavit-field">
        <textarea id="affidavit-question" ref={field} rows={1} dir="auto" maxLength={QUESTION_CHARACTERS_MAX} enterKeyHint="send"
          placeholder={texts.placeholder} value={question} onChange={({ target }) => setQuestion(target.value)} onKeyDown={onKeyDown}
          aria-invalid={isWrong} aria-describedby="affidavit-status affidavit-hint" />
        {isBusy ? <button type="button" onClick={() => { stop(); field.current?.focus(); }}>{texts.stop}</button>
          : <button type="submit" className="affidavit-send">{texts.send}</button>}
      </div>
      <p id="affidavit-hint" className="affidavit-small">{texts.hint}</p>
    </form>
  );
}

interface SelectionProps {
  text: string;
  texts: Texts;
  put: ((asked: Asking) => void) | undefined;
  drop: () => void;
}

function Selection({ text, texts, put, drop }: SelectionProps) {
  const actions = Object.entries(ABOUT_SELECTION) as [keyof typeof ABOUT_SELECTION, string][];
  return (
    <div className="affidavit-selection">
      <p className="affidavit-small">{texts.selection}</p>
      <blockquote dir="auto">{text}</blockquote>
      <p className="affidavit-actions">
        {actions.map(([name, query]) => (
          <button key={name} type="button" disabled={!put} onClick={() => put?.({ question: texts[name], query })}>{texts[name]}</button>
        ))}
      </p>
      <button type="button" className="affidavit-plain" onClick={drop}>{texts.wholeBook}</button>
    </div>
  );
}

function tooLong(selection: string | undefined, texts: Texts): string {
  const count = selection?.split(/\s+/).length ?? 0;
  return count > SELECTION_WORDS_MAX ? fill(texts.selectionLong, { count, most: SELECTION_WORDS_MAX }) : "";
}
