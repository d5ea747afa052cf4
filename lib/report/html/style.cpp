#include "report/html/style.h"

namespace dsckpt {
namespace {

// The fills are Paul Tol's "light" scheme, made to be told apart by everyone and to carry dark
// text; on dark pages deeper tones of the same hues carry light text.
constexpr std::string_view kStyle = R"(
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #fff; --ink: #1b1f23; --soft: #5c6670; --line: #e3e5e8; --on: #14171a;
  --c0: #77aadd; --c1: #ee8866; --c2: #44bb99; --c3: #ffaabb; --c4: #eedd88; --c5: #99ddff;
  --c6: #bbcc33; --c7: #aaaa00; --c8: #d5d8db; --warn: #b3540e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1c2024; --ink: #e8eaed; --soft: #9aa4ae; --line: #30363c; --on: #f4f6f8;
    --c0: #3b6ea5; --c1: #a8502f; --c2: #1f7a61; --c3: #a85a6e; --c4: #86711f; --c5: #2b7a93;
    --c6: #5c6d14; --c7: #6b6a00; --c8: #4a5158; --warn: #f0a868;
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
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px 24px; margin: 12px 0 0; }
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
.columns { margin-top: 16px; border-bottom: 1px solid var(--line); }
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
@media (max-width: 1059px) { .treemap .l { display: none; } }
@media (max-width: 699px) {
  .treemap .m { display: none; }
  main { padding: 20px 12px 32px; }
  section { padding: 16px 14px; }
  h1 { font-size: 19px; }
}
@media print { section { break-inside: avoid; } }
)";

}  // namespace

std::string_view html_style() {
  return kStyle;
}

}  // namespace dsckpt
