"""What the page of a report looks like: on a screen, light or dark, on a telephone, and on paper."""

from __future__ import annotations

__all__ = ["POLICY", "STYLE"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser may do with the page: show it. No script, no picture from elsewhere, no form."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --quiet: #55636f; --paper: #fff; --line: #d8dfe6; --mark: #0b5fb0;
  --soft: #f3f6f9; --good: #1a6b3c; --warn: #94400a; --warn-paper: #fff4ea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #a3b2c0; --paper: #12181f; --line: #2c3946;
  --mark: #6cb6ff; --soft: #19222c; --good: #7ee2a8; --warn: #ffb27a; --warn-paper: #2b1d12; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 58rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p { margin: .5rem 0; } .quiet { color: var(--quiet); } ul { margin: .5rem 0; padding-left: 1.25rem; }
li { margin: .3rem 0; }
.claim { border-left: 4px solid var(--mark); background: var(--soft); padding: .6rem 1rem; margin: 1rem 0; }
.claim:first-of-type { font-size: 1.1rem; }
.none, .warning { border-left: 4px solid var(--warn); background: var(--warn-paper); color: var(--warn);
  padding: .5rem 1rem; margin: 1rem 0; } .none { font-weight: 700; font-size: 1.25rem; }
.figure { display: flex; flex-wrap: wrap; gap: .25rem 2.5rem; margin: 1.25rem 0; }
.figure div { min-width: 9rem; }
.figure strong { display: block; font-size: 1.9rem; line-height: 1.2; font-weight: 650; }
.figure span { color: var(--quiet); font-size: .9rem; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 0 2.5rem; }
.yes h3 { color: var(--good); } .no h3 { color: var(--warn); }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } table.facts td:first-child { width: 15rem; color: var(--quiet); }
code { font: .875em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .6rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0; }
svg { width: 100%; max-width: 36rem; height: auto; display: block; margin: .5rem 0; }
dl { margin: .5rem 0; } dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0 0 0 1.25rem; }
.sign { display: grid; grid-template-columns: 2fr 1fr 2fr; gap: 2rem; margin-top: 3.5rem; }
.sign div { border-top: 1px solid var(--ink); padding-top: .25rem; color: var(--quiet); font-size: .85rem; }
@media (max-width: 46rem) {
  body { padding: 1.25rem 1rem 3rem; } .sign { grid-template-columns: 1fr; gap: 2.5rem; }
  thead { display: none; } tbody tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; }
  tbody td, table.facts td:first-child { display: block; width: auto; border: 0; padding: .1rem 0; }
  td[data-name]::before { content: attr(data-name) ": "; color: var(--quiet); }
  .figure strong { font-size: 1.5rem; }
}
@media print {
  @page { margin: 18mm 16mm; }
  :root { color-scheme: light; --ink: #000; --quiet: #444; --paper: #fff; --line: #bbb; --mark: #0b5fb0; --soft: #fff;
    --good: #1a6b3c; --warn: #94400a; --warn-paper: #fff; }
  body { font-size: 10pt; padding: 0; max-width: none; }
  h2, h3 { break-after: avoid; } tr, li, svg, .claim, .warning, .sign, dt { break-inside: avoid; }
  dt { break-after: avoid; } table:not(:has(tr:nth-child(9))) { break-inside: avoid; }
  svg { max-width: 28rem; } .figure { gap: .25rem 1.5rem; flex-wrap: nowrap; }
  .figure strong { font-size: 1.6rem; } .figure div { min-width: 0; }
  thead { display: table-header-group; }
}
"""
