#include "report/html/style.h"

namespace dsckpt {
namespace {

// The fills are Paul Tol's "light" scheme: they differ for colour-blind eyes and carry dark text.
// Dark pages have deeper tones of the same hues with light text.
constexpr std::string_view kStyle = R"(
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #fff; --ink: #1b1f23; --soft: #5c6670; --line: #e3e5e8; --on: #14171a;
  --c0: #77aadd; --c1: #ee8866; --c2: #44bb99; --c3: #ffaabb; --c4: #eedd88; --c5: #99ddff;
  --c6: #bbcc33; --c7: #aaaa00; --c8: #d5d8db; --warn: #b3540e; --deep: #1d5a96;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1c2024; --ink: #e8eaed; --soft: #9aa4ae; --line: #30363c; --on: #f4f6f8;
    --c0: #3b6ea5; --c1: #a8502f; --c2: #1f7a61; --c3: #a85a6e; --c4: #86711f; --c5: #2b7a93;
    --c6: #5c6d14; --c7: #6b6a00; --c8: #4a5158; --warn: #f0a868; --deep: #7db8f0;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1060px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0; font-weight: 650; }
h2 { font-size: 17px; margin: 0 0 4px; font-weight: 650; }
h3 { font: 600 14px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; margin: 20px 0 2px; }
p { margin: 0 0 12px; color: var(--soft); }
header p { font-size: 17px; margin: 2px 0 0; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 20px 24px; margin-top: 20px;
}
.headline { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 20px 0 0; }
.headline div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
.headline dt { color: var(--soft); font-size: 13px; }
.headline dd { margin: 0; font-size: 22px; font-weight: 600; line-height: 1.3; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 12px 24px; margin: 12px 0 0; }
.facts dt { color: var(--soft); font-size: 13px; }
.facts dd { margin: 0; }
.notes { margin: 16px 0 0; padding: 8px 0 8px 14px; border-left: 3px solid var(--warn); list-style: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-top: 12px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 18px 5px 0; border-bottom: 1px solid var(--line); vertical-align: middle; font-weight: 400; }
thead th { color: var(--soft); font-size: 13px; white-space: nowrap; vertical-align: bottom; }
tr:last-child > * { border-bottom: 0; }
tr > :last-child { padding-right: 0; }
.n { text-align: right; white-space: nowrap; }
.bad { color: var(--warn); font-weight: 600; }
.wide { width: 68%; min-width: 120px; }
code, .mono { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
th.mono { min-width: 200px; }
.dense th.mono { overflow-wrap: break-word; }
.dense th, .dense td { font-size: 13px; padding-right: 14px; }
.sub { color: var(--soft); font-size: 13px; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 9px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 10px; padding: 0; list-style: none; }
.ends { display: flex; justify-content: space-between; gap: 16px; margin: 4px 0 0; font-size: 13px; }
svg { display: block; }
svg .part, .treemap rect { stroke: var(--card); stroke-width: 2px; }
svg .part { stroke-width: 1px; }
.bar, .treemap { border-radius: 4px; overflow: hidden; }
.bar { margin-top: 12px; }
td .bar { margin: 0; border-radius: 2px; }
.columns rect, .strip rect { shape-rendering: crispEdges; }
.columns { margin-top: 8px; border-bottom: 1px solid var(--line); overflow: hidden; }
.cap { fill: var(--warn); }
.ranks th, .ranks td, .parts th, .parts td, #memory th, #memory td, code { white-space: nowrap; }
.ranks .wide { width: 60%; min-width: 90px; }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--soft); }
summary:hover { color: var(--ink); }
.tree details { margin: 0; border-top: 1px solid var(--line); }
.tree > details:first-child { border-top: 0; }
.tree summary { padding: 6px 0; color: var(--ink); list-style-position: outside; margin-left: 16px; }
.tree details > :not(summary) { margin-left: 20px; }
.pairs td { white-space: nowrap; }
.tree p { margin: 4px 0 10px; font-size: 13px; }
.tree table { table-layout: fixed; margin-top: 0; }
.tree tr > * { width: 112px; }
.tree tr > :nth-child(2), .tree tr > :nth-child(3) { width: 150px; }
.tree tr > :nth-child(4) { width: 76px; }
.tree tr > :first-child { width: auto; min-width: 0; }
.tree .head th { border-bottom: 1px solid var(--line); }
.node { display: inline-grid; width: calc(100% - 6px); vertical-align: top; gap: 2px 16px; align-items: center;
  grid-template-columns: minmax(0, 1fr) 130px 170px 150px; }
.node .bar { margin: 0; }
.node .n { color: var(--soft); font-size: 13px; }
.strong { font-weight: 600; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 20px 40px; }
.letter { display: inline-block; width: 24px; height: 24px; line-height: 24px; margin-right: 9px; text-align: center;
  border-radius: 12px; background: var(--c8); font-size: 14px; }
.histogram { margin: 8px 0 4px; }
.small { width: 130px; margin: 0; }
.pale { opacity: .4; }
.treemap text { fill: var(--on); font-size: 12px; }
.treemap .name { font-weight: 650; }
.treemap .dim { opacity: .75; }
.tick { fill: var(--soft); font-size: 12px; text-anchor: middle; }
.treemap svg:hover rect, g:hover .part, .columns g:hover rect { stroke: var(--ink); }
.c0 { fill: var(--c0); background: var(--c0); } .c1 { fill: var(--c1); background: var(--c1); }
.c2 { fill: var(--c2); background: var(--c2); } .c3 { fill: var(--c3); background: var(--c3); }
.c4 { fill: var(--c4); background: var(--c4); } .c5 { fill: var(--c5); background: var(--c5); }
.c6 { fill: var(--c6); background: var(--c6); } .c7 { fill: var(--c7); background: var(--c7); }
.c8 { fill: var(--c8); background: var(--c8); }
.d0 { fill: var(--deep); background: var(--deep); opacity: 0.14; } .d1 { fill: var(--deep); background: var(--deep); opacity: 0.24; }
.d2 { fill: var(--deep); background: var(--deep); opacity: 0.33; } .d3 { fill: var(--deep); background: var(--deep); opacity: 0.43; }
.d4 { fill: var(--deep); background: var(--deep); opacity: 0.52; } .d5 { fill: var(--deep); background: var(--deep); opacity: 0.61; }
.d6 { fill: var(--deep); background: var(--deep); opacity: 0.71; } .d7 { fill: var(--deep); background: var(--deep); opacity: 0.81; }
.d8 { fill: var(--deep); background: var(--deep); opacity: 0.90; } .d9 { fill: var(--deep); background: var(--deep); opacity: 0.99; }
@media (min-width: 1500px) {
  main { max-width: 1840px; display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 20px; align-items: start; }
  main > * { grid-column: 1 / -1; margin-top: 0; }
  #kinds, #ranks, #memory, #conversions, #sides, #verdicts { grid-column: auto; height: 100%; }
  #kinds:has(+ #modules), #conversions:not(#memory + *) { grid-column: 1 / -1; }
}
@media (max-width: 1059px) { .treemap .l { display: none; } }
@media (max-width: 699px) {
  .treemap .m { display: none; }
  main { padding: 20px 12px 32px; }
  section { padding: 16px 14px; }
  h1 { font-size: 19px; }
  .headline { grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
  .facts { grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); }
  th, td { padding-right: 10px; }
  #memory tr > * { white-space: normal; overflow-wrap: normal; font-size: 13px; }
  #memory tr > :nth-child(4), #memory tr > :nth-child(6) { display: none; }
  #memory tr > :first-child, #memory .n { white-space: nowrap; }
  .node { grid-template-columns: minmax(0, 1fr) auto; }
  .node .bar { grid-column: 1 / -1; grid-row: 2; }
  .node .n + .n { display: none; }
  .tree details > :not(summary) { margin-left: 8px; }
  .pairs tr > :nth-child(2), .pairs tr > :nth-child(3), .pairs tr > :nth-child(n + 6) { display: none; }
  .dense.pairs th.mono { min-width: 0; }
}
@media print { section { break-inside: avoid; } }
)";

}  // namespace

std::string_view html_style() {
  return kStyle;
}

}  // namespace dsckpt
