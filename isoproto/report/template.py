"""The frame and the style sheet of the report page.

They are a Python module because a Flower bundle carries no HTML files. The page loads nothing. Its content security
policy forbids scripts and requests, even if a client's name smuggles in markup.
"""

from string import Template

from isoproto.report.charts import PALETTE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<header>
<div class="page">
$header
</div>
</header>
<main class="page">
$main
</main>
<footer class="page">
<p>One run shows how accurate the clients became, not why. Whether the exchange helped is a comparison with the
same settings and seeds and nothing exchanged (<code>strategy = "local"</code>, and the controls of the method).
A gain that those reach as well is regularisation.</p>
<p>Bytes are decimal (1 kB = 1000 B). The page is made from <code>config.toml</code>,
<code>partition.json</code>, <code>metrics.jsonl</code> and <code>summary.json</code> beside it; the drawings are
in <code>plots/</code>.</p>
</footer>
</body>
</html>
""")

STYLE = Template("""\
:root { color-scheme: light dark; $light
  --back: #f4f6f9; --edge: #dde2ea; --accent: #2f66c8; --soft: #eef2f8;
  --good: #0b7a4b; --bad: #b3261e; --busy: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { $dark
  --back: #0f1319; --edge: #29313d; --accent: #79aaff; --soft: #1e2530;
  --good: #4fd197; --bad: #ff8a80; --busy: #f0bf5a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--back); color: var(--ink); line-height: 1.5; overflow-wrap: anywhere;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
.page { max-width: 1200px; margin: 0 auto; padding: 0 24px; }
header { background: var(--panel); border-bottom: 1px solid var(--edge); padding: 28px 0 24px; }
main { padding-top: 8px; }
footer { color: var(--muted); font-size: 13px; padding-top: 8px; padding-bottom: 48px; }
footer p { max-width: 78ch; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.015em; margin: 2px 0 0; display: inline; }
h2 { font-size: 19px; letter-spacing: -0.01em; margin: 40px 0 14px; }
h3 { font-size: 15px; margin: 0 0 2px; }
.kicker { color: var(--muted); font-size: 13px; margin: 0; }
.name { color: var(--muted); margin: 6px 0 18px; }
.pill { display: inline-block; vertical-align: 6px; margin-left: 10px; padding: 1px 10px; border-radius: 99px;
  border: 1px solid currentColor; font-size: 13px; font-weight: 600; }
.completed { color: var(--good); }
.failed { color: var(--bad); }
.running, .interrupted, .stopped { color: var(--busy); }
.facts { display: flex; flex-wrap: wrap; gap: 10px 32px; margin: 0; }
.facts dt { color: var(--muted); font-size: 12px; }
.facts dd { margin: 0; font-weight: 600; font-size: 15px; }
.notice { border: 1px solid var(--edge); border-left: 4px solid currentColor; border-radius: 8px;
  background: var(--panel); padding: 12px 16px; margin: 0 0 16px; }
.notice span { color: var(--ink); }
.cards { display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); gap: 14px; margin: 0; }
.card, figure, .panel { background: var(--panel); border: 1px solid var(--edge); border-radius: 12px; }
.card { padding: 14px 18px 15px; }
.card dt { font-size: 13px; font-weight: 600; color: var(--muted); }
.card .figure { margin: 2px 0; font-size: 25px; line-height: 1.25; font-weight: 680; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.card .meaning { margin: 0; font-size: 13px; line-height: 1.42; color: var(--muted); }
.card:first-child { grid-area: span 2 / span 2; border: 2px solid var(--accent); padding: 20px 26px;
  display: flex; flex-direction: column; justify-content: center; }
.card:first-child dt { font-size: 15px; }
.card:first-child .figure { font-size: 60px; line-height: 1.15; letter-spacing: -0.035em; }
.card:first-child .meaning { font-size: 14.5px; line-height: 1.5; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; margin-bottom: 16px; }
.grid > :last-child:nth-child(odd) { grid-column: 1 / -1; }
.grid > .panel { margin: 0; }
.grid.top { align-items: start; }
figure { margin: 0; padding: 16px 18px 14px; }
figure.wide { grid-column: 1 / -1; }
figcaption { font-size: 13px; line-height: 1.45; color: var(--muted); margin-top: 8px; max-width: 88ch; }
figure h3 { margin-bottom: 8px; }
svg { display: block; width: 100%; height: auto; margin: 0 auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg image { image-rendering: pixelated; }
.panel { padding: 16px 18px; margin-bottom: 16px; }
.scroll { overflow-x: auto; }
.tall { max-height: 560px; overflow: auto; }
/* A shadow at the lower edge as long as more rows follow; what covers it scrolls with the last row. */
.tall { background: linear-gradient(transparent, var(--panel) 70%) bottom / 100% 40px no-repeat local,
  linear-gradient(transparent, var(--edge)) bottom / 100% 16px no-repeat scroll; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; font-size: 15px; padding-bottom: 8px; }
th, td { padding: 6px 12px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--edge); }
th:first-child, td:first-child { padding-left: 2px; }
th:last-child, td:last-child { padding-right: 2px; }
thead th { color: var(--muted); font-size: 12.5px; font-weight: 600; white-space: nowrap; }
.tall thead th { position: sticky; top: 0; background: var(--panel); border-bottom: 0;
  box-shadow: inset 0 -1px var(--edge); }
tbody th { font-weight: 500; }
tbody tr:last-child > * { border-bottom: 0; }
.n { text-align: right; }
td.n { white-space: nowrap; }
td.long { overflow-wrap: anywhere; min-width: 15ch; }
summary { cursor: pointer; font-weight: 600; font-size: 15px; }
details[open] summary { margin-bottom: 10px; }
.name, code, pre { font: 13px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--soft); border-radius: 8px; padding: 12px 14px; margin: 8px 0 0;
  white-space: pre-wrap; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.quiet { color: var(--muted); margin: 0; font-size: 14px; }
@media (max-width: 1060px) { .cards { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@media (max-width: 980px) {
  .grid { grid-template-columns: minmax(0, 1fr); }
  .wide .scroll > svg { min-width: 760px; }
}
@media (max-width: 640px) {
  .page { padding: 0 12px; }
  header { padding: 18px 0; }
  h1 { font-size: 25px; }
  .facts { gap: 8px 22px; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; }
  .card { padding: 11px 13px; }
  .card .figure { font-size: 21px; }
  .card:first-child { grid-area: span 1 / span 2; padding: 14px 16px; }
  .card:first-child .figure { font-size: 44px; }
  .card:last-child { grid-column: span 2; }
  figure, .panel { padding: 12px; }
  th, td { padding: 6px 5px; }
  thead th { white-space: normal; }
}
@media print {
  body { background: none; }
  .card, figure, .panel { break-inside: avoid; }
  .tall { max-height: none; }
}
""")


def page(*, title: str, header: str, main: str) -> str:
    """Return the whole page. The arguments are inserted as HTML, so they must be escaped already."""
    light, dark = (" ".join(f"--{name}: {colours[scheme]};" for name, colours in PALETTE.items()) for scheme in (0, 1))
    style = STYLE.substitute(light=light, dark=dark)
    return PAGE.substitute(policy=POLICY, title=title, style=style, header=header, main=main)
