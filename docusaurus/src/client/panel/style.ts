/** The panel's style, from the site's Infima variables. A string, because Docusaurus bundles all CSS files into one that
 * every page waits for. */
export const STYLE = `
.affidavit {
  position: fixed; z-index: 199; inset-block-end: 1.3rem; inset-inline-end: 1.3rem;
  display: flex; flex-direction: column; box-sizing: border-box;
  width: 25.5rem; max-width: calc(100vw - 2.6rem); max-height: min(44rem, calc(100vh - var(--ifm-navbar-height) - 2.6rem));
  background: var(--ifm-background-surface-color); color: var(--ifm-font-color-base);
  border: 1px solid var(--ifm-color-emphasis-300); border-radius: .75rem;
  box-shadow: 0 .75rem 2.5rem rgb(0 0 0 / 22%), 0 .125rem .5rem rgb(0 0 0 / 10%);
  font: .9375rem/1.55 var(--ifm-font-family-base); overflow-wrap: anywhere; overflow: hidden;
  scrollbar-color: var(--ifm-color-emphasis-500) transparent;
}
.affidavit *, .affidavit *::before { box-sizing: border-box; }
.affidavit :is(h2, h3, h4, p, ol, ul, blockquote) { margin: 0; padding: 0; border: 0; font: inherit; color: inherit; }
.affidavit :is(ol, ul) { list-style: none; }
.affidavit header { display: flex; align-items: center; justify-content: space-between; padding-block: .75rem; padding-inline: 1.25rem .75rem; border-bottom: 1px solid var(--ifm-color-emphasis-200); }
.affidavit h2 { font-weight: 650; font-size: 1rem; line-height: 1.3; }
.affidavit a { color: inherit; text-decoration: underline; text-decoration-color: var(--ifm-color-primary); text-decoration-thickness: .09em; text-underline-offset: .2em; }
.affidavit a:hover { text-decoration-thickness: .15em; }
.affidavit :focus-visible { outline: 2px solid var(--ifm-color-primary); outline-offset: 2px; border-radius: .25rem; }
.affidavit-small { font-size: .8125rem !important; line-height: 1.5 !important; color: var(--ifm-color-emphasis-700) !important; }

.affidavit button { padding: .45rem .9rem; font: inherit; font-size: .875rem; font-weight: 600; color: inherit; background: transparent; border: 1px solid var(--ifm-color-emphasis-500); border-radius: .5rem; cursor: pointer; }
.affidavit button:hover:enabled { background: var(--ifm-color-emphasis-100); }
.affidavit button:disabled { color: var(--ifm-color-emphasis-700); border-style: dashed; cursor: default; }
.affidavit .affidavit-send { background: var(--ifm-font-color-base); border-color: var(--ifm-font-color-base); color: var(--ifm-background-surface-color); }
.affidavit .affidavit-send:hover:enabled { background: var(--ifm-color-emphasis-800); }
.affidavit .affidavit-close { display: grid; place-items: center; width: 2.25rem; height: 2.25rem; padding: 0; border: 0; }
.affidavit-close svg { width: 1rem; fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linecap: round; }
.affidavit .affidavit-plain { padding: 0; border: 0; font-weight: 400; font-size: .8125rem; text-decoration: underline; text-underline-offset: .2em; }
.affidavit .affidavit-plain:hover:enabled { background: none; text-decoration-thickness: .15em; }

.affidavit-thread { position: relative; flex: 1 1 auto; min-height: 0; overflow-y: auto; overscroll-behavior: contain; padding: 1.125rem 1.25rem; }
.affidavit .affidavit-thread:focus-visible { outline-offset: -2px; }
.affidavit-intro { color: var(--ifm-color-emphasis-800); }
.affidavit-intro > p + p { margin-top: .625rem; font-size: .8125rem; color: var(--ifm-color-emphasis-700); }
.affidavit .affidavit-intro h3 { margin-block: 1.25rem .5rem; font-size: .8125rem; color: var(--ifm-color-emphasis-700); }
.affidavit-intro button { display: block; width: 100%; margin-top: .375rem; text-align: start; font-weight: 400; border-color: var(--ifm-color-emphasis-300); }
.affidavit-actions { display: flex; flex-wrap: wrap; align-items: center; gap: .375rem .875rem; }
.affidavit-actions:empty { display: none; }
.affidavit-selection .affidavit-actions { gap: .375rem; }
.affidavit :is(.affidavit-selection .affidavit-actions, .affidavit-complaints) button { padding: .3rem .6rem; font-size: .8125rem; }
.affidavit .affidavit-thumb { display: grid; place-items: center; width: 1.75rem; height: 1.75rem; padding: 0; border: 0; }
.affidavit-thumb svg { width: 1.125rem; fill: none; stroke: currentColor; stroke-width: 1.3; stroke-linejoin: round; }
.affidavit-thumb + .affidavit-thumb { margin-inline-start: -.625rem; }
.affidavit-thumb + .affidavit-thumb svg { transform: rotate(180deg); }
.affidavit button[aria-pressed="true"]:enabled { background: var(--ifm-color-emphasis-200); border-color: currentColor; }
.affidavit-thumb[aria-pressed="true"] svg { fill: currentColor; fill-opacity: .4; }
.affidavit-complaints { display: flex; flex-wrap: wrap; gap: .375rem; flex-basis: 100%; scroll-margin: 1.125rem; }
.affidavit-complaints > span { flex-basis: 100%; }
.affidavit-exchange > * + *, .affidavit-refusal > * + *, .affidavit-problem > * + * { margin-top: .75rem !important; }
.affidavit-exchange + .affidavit-exchange { margin-top: 1.5rem; padding-top: 1.375rem; border-top: 1px solid var(--ifm-color-emphasis-200); }
.affidavit h3 { font-weight: 650; font-size: 1rem; line-height: 1.4; white-space: pre-wrap; }
.affidavit h4 { margin-top: 1.125rem !important; font-size: .8125rem; font-weight: 600; color: var(--ifm-color-emphasis-700); }
.affidavit-answer > p { white-space: pre-wrap; }
.affidavit .affidavit-answer > * + * { margin-top: .75rem; }
.affidavit code { padding: .1em .3em; font: .875em/1.5 var(--ifm-font-family-monospace); color: inherit; background: var(--ifm-color-emphasis-200); border: 0; border-radius: .3em; }
.affidavit-code > p { display: flex; align-items: baseline; justify-content: space-between; min-height: 1.5em; margin-top: .4rem; }
.affidavit pre { margin: 0; padding: .75rem .875rem; overflow-x: auto; overflow-wrap: normal; text-align: left; color: inherit; background: var(--ifm-color-emphasis-100); border: 1px solid var(--ifm-color-emphasis-200); border-radius: .5rem; }
.affidavit pre code { padding: 0; font-size: .8125rem; white-space: pre; background: none; }
.affidavit-of-code { font-family: var(--ifm-font-family-monospace); direction: ltr; text-align: left; }
.affidavit-table { overflow-x: auto; }
.affidavit table { display: table; width: 100%; margin: 0; font-size: .875rem; line-height: 1.4; border-collapse: collapse; }
.affidavit :is(th, td) { min-width: 5rem; padding: .375rem .5rem; text-align: start; vertical-align: top; border: 1px solid var(--ifm-color-emphasis-300); background: none; color: inherit; }
.affidavit th { font-weight: 650; background: var(--ifm-color-emphasis-100); }
.affidavit sup { font-size: .75em; line-height: 0; margin-inline: .1em .15em; }
.affidavit sup a { padding: .1em .4em; border-radius: .3em; background: var(--ifm-color-emphasis-200); font-weight: 650; text-decoration: none; }
.affidavit sup a:hover { background: var(--ifm-font-color-base); color: var(--ifm-background-surface-color); }
.affidavit-sources { margin-top: .5rem !important; }
.affidavit-sources li { display: grid; grid-template-columns: 1.5rem minmax(0, 1fr); font-size: .875rem; }
.affidavit-sources li + li { margin-top: .5rem; }
.affidavit-number { color: var(--ifm-color-emphasis-700); font-variant-numeric: tabular-nums; }
.affidavit-sources .affidavit-small::before { content: "·"; margin-inline: .4em; }
.affidavit blockquote { margin-top: .25rem; padding-inline-start: .75rem; border-inline-start: 2px solid var(--ifm-color-emphasis-300); font-size: .875rem; color: var(--ifm-color-emphasis-800); white-space: pre-wrap; }
.affidavit-about, .affidavit-selection blockquote { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3; overflow: hidden; }
.affidavit-level::before { content: ""; display: inline-block; width: .5rem; height: .5rem; margin-inline-end: .5rem; border-radius: 50%; background: currentColor; }
.affidavit-level { font-size: .875rem !important; font-weight: 600 !important; }
.affidavit-level.affidavit-high { color: var(--ifm-color-success-contrast-foreground); }
.affidavit-level.affidavit-medium { color: var(--ifm-color-warning-contrast-foreground); }
.affidavit-level + .affidavit-small { margin-top: .25rem !important; }
.affidavit .affidavit-warning, .affidavit-problem { padding: .625rem .875rem; border-radius: .5rem; border-inline-start: 3px solid var(--ifm-color-danger); background: var(--ifm-color-danger-contrast-background); color: var(--ifm-color-danger-contrast-foreground); }
.affidavit .affidavit-warning { border-inline-start: 3px solid var(--ifm-color-warning); background: var(--ifm-color-warning-contrast-background); color: var(--ifm-color-warning-contrast-foreground); font-size: .875rem; }
.affidavit-problem .affidavit-small, .affidavit-problem button:disabled { color: inherit !important; }
.affidavit .affidavit-title { font-weight: 650; }
.affidavit-refusal li + li { margin-top: .375rem; }

.affidavit .affidavit-status { padding: 0 1.25rem; font-size: .8125rem; color: var(--ifm-color-emphasis-700); }
.affidavit .affidavit-spoken { position: absolute; width: 1px; height: 1px; padding: 0 !important; overflow: hidden; clip-path: inset(50%); }
.affidavit-status:not(:empty, .affidavit-spoken) { padding-block: .5rem !important; border-top: 1px solid var(--ifm-color-emphasis-200) !important; }
.affidavit-busy::before { content: ""; display: inline-block; width: .5rem; height: .5rem; margin-inline-end: .5rem; border-radius: 50%; background: var(--ifm-color-primary); }
.affidavit form { padding: .875rem 1.25rem 1rem; border-top: 1px solid var(--ifm-color-emphasis-200); }
.affidavit label { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.affidavit-field { display: flex; gap: .5rem; align-items: flex-end; }
.affidavit textarea { flex: 1; min-width: 0; min-height: 2.625rem; max-height: 9rem; padding: .5rem .75rem; resize: none; field-sizing: content; font: inherit; color: inherit; background: var(--ifm-background-color); border: 1px solid var(--ifm-color-emphasis-500); border-radius: .5rem; }
.affidavit textarea::placeholder { color: var(--ifm-color-emphasis-700); opacity: 1; }
.affidavit textarea:focus { outline: 2px solid var(--ifm-color-primary); outline-offset: -1px; }
.affidavit .affidavit-field button { height: 2.625rem; }
.affidavit form > .affidavit-small { margin-top: .5rem; }
.affidavit textarea[aria-invalid="true"] { border-color: var(--ifm-color-danger); }
.affidavit-selection { margin-bottom: .75rem; }
.affidavit-selection > * + * { margin-top: .4rem !important; }

::highlight(affidavit) { background-color: #ffe08a; color: #1c1e21; }
.affidavit-quoted { background-color: #ffe08a; color: #1c1e21; }

/* The panel takes the place of the sidebar, which leads to other pages: the text hardly moves, and neither it nor the
 * table of contents is behind the panel. */
@media (min-width: 997px) {
  body:has(.affidavit) { --affidavit-width: clamp(20rem, 27vw, 25.5rem); }
  body:has(.affidavit) :is(.main-wrapper, .footer) { padding-inline-start: calc(var(--affidavit-width) + 1.3rem); }
  body:has(.affidavit) .main-wrapper { --doc-sidebar-width: 0px; }
  body:has(.affidavit) .theme-doc-sidebar-container { display: none; }
  .affidavit { inset-inline: .65rem auto; inset-block-end: .65rem; width: var(--affidavit-width); max-height: calc(100vh - var(--ifm-navbar-height) - 1.3rem); }
}
@media (hover: none) {
  #affidavit-hint { display: none; }
}
@media (max-width: 36rem) {
  .affidavit { inset: auto 0 0; z-index: calc(var(--ifm-z-index-overlay) + 1); width: 100%; max-width: none; height: 100dvh; max-height: none; border: 0; border-radius: 0; }
  .affidavit textarea { font-size: 1rem; }
}
@media (prefers-reduced-motion: no-preference) {
  .affidavit { animation: affidavit-rise .16s ease-out; }
  .affidavit-busy::before { animation: affidavit-breathe .8s ease-in-out infinite alternate; }
}
@keyframes affidavit-rise { from { opacity: 0; transform: translateY(.5rem); } }
@keyframes affidavit-breathe { to { opacity: .25; } }
/* On paper the questions and answers follow the page. */
@media print {
  .affidavit { position: static; width: auto; max-width: none; height: auto; max-height: none; overflow: visible; border: 0; box-shadow: none; break-before: page; animation: none; }
  .affidavit, .affidavit * { color: #000 !important; background: none !important; }
  .affidavit { background: #fff !important; }
  .affidavit-thread { overflow: visible; }
  .affidavit pre code { white-space: pre-wrap; }
  .affidavit-exchange, .affidavit-sources li { break-inside: avoid-page; }
  .affidavit-sources a[href]::after { content: " " attr(href); font-size: .75rem; }
  .affidavit:not(:has(.affidavit-exchange)), .affidavit :is(button, form, .affidavit-status, .affidavit-complaints) { display: none !important; }
}
`;
