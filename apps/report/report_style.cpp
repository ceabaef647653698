#include "apps/report/report_page.h"

namespace heddle {

const char* const kReportStyle = R"css(
:root{--plane:#f9f9f7;--card:#fcfcfb;--ink:#0b0b0b;--soft:#52514e;--mute:#77756f;--grid:#e7e6e0;--base:#c3c2b7;
--edge:rgba(11,11,11,.10);--c0:#2a78d6;--c1:#d9480f;--c2:#008f6b;--c3:#4a3aa7;--c4:#b77900;--c5:#e34948;--c6:#c2458a;
--c7:#3f7d20;--c8:#898781;--fwd:#2a78d6;--bwd:#e08a00;--cmp:#7a4fc9;--com:#d63f6b;--upd:#1a9467;--wai:#f0a7b9;
--dat:#9c9a92;--mid:#ecebe6;--cool:#1c5cab;--hot:#c23a22;--deep:#104281;--pale:#e3edf9}
@media (prefers-color-scheme:dark){:root{--plane:#0d0d0d;--card:#1a1a19;--ink:#f6f6f4;--soft:#c3c2b7;--mute:#98968e;
--grid:#2c2c2a;--base:#4a4a46;--edge:rgba(255,255,255,.11);--c0:#4a97ec;--c1:#f0793f;--c2:#1fb28a;--c3:#9b8ffa;
--c4:#d9a02b;--c5:#ee6c6b;--c6:#de6fae;--c7:#74b34b;--c8:#898781;--fwd:#3987e5;--bwd:#d98a17;--cmp:#9471e0;
--com:#e0567f;--upd:#21a376;--wai:#8d4a5e;--dat:#77756f;--mid:#33332f;--cool:#5ea3f0;--hot:#ec7357;--deep:#8fc1fb;
--pale:#1d2c40}}
*{box-sizing:border-box}
body{margin:0;background:var(--plane);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,"DejaVu Sans",sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1280px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:26px;line-height:1.2;margin:2px 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:36px 0 12px;overflow-wrap:anywhere}h3{font-size:15px;margin:0}
.over,.note,figcaption p,.tiles small,.legend,.ramp,summary{color:var(--soft)}
.over{margin:0;font-size:13px}.note{margin:0 0 10px;max-width:75ch}
.tiles{list-style:none;margin:18px 0 0;padding:0;display:grid;gap:12px;
grid-template-columns:repeat(auto-fit,minmax(150px,1fr))}
.tiles li,figure,.facts,.machine{background:var(--card);border:1px solid var(--edge);border-radius:10px}
.tiles li{padding:12px 14px;display:flex;flex-direction:column}
.tiles span{font-size:13px;color:var(--soft)}.tiles b{font-size:24px;line-height:1.25;font-weight:600}
.tiles small{font-size:12px}
.grid{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,370px),1fr));align-items:start}
figure{margin:0;padding:14px 16px 12px;min-width:0}figure.wide{grid-column:1/-1}
figcaption{margin-bottom:8px}figcaption p{margin:2px 0 0;font-size:13px;line-height:1.4;max-width:95ch}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.scroll svg text{font-size:11.5px}
.axes line{stroke:var(--grid);stroke-width:1}.axes .base{stroke:var(--base)}.axes text{fill:var(--mute)}
text.label{fill:var(--soft);font-size:11px}text.value{fill:var(--ink)}text.strong{fill:var(--ink);font-weight:600}
svg text.inside{fill:#fff;font-size:11px;pointer-events:none}.p-wait+text.inside{fill:var(--ink)}
rect.inner{filter:brightness(.7)}
.series polyline{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.series circle{stroke:var(--card);stroke-width:1.5}.series .band{opacity:.16;stroke:none}
.dashed polyline{stroke-dasharray:5 4}
.cursor{stroke:var(--mute);stroke-width:1;stroke-dasharray:2 2;pointer-events:none}
.plot{position:relative}.plot svg{touch-action:pan-y}
.tip{position:absolute;top:0;left:0;pointer-events:none;background:var(--card);border:1px solid var(--base);
border-radius:6px;padding:5px 9px;font-size:12px;line-height:1.45;white-space:nowrap;font-variant-numeric:tabular-nums;
box-shadow:0 2px 10px rgba(0,0,0,.16);z-index:2}.tip[hidden]{display:none}.tip b{font-weight:600}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:3px 16px;margin:8px 0 0;padding:0;font-size:12.5px}
.legend li{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.key{display:inline-block;flex:none;width:12px;height:12px;border-radius:3px}
.key.line{width:18px;height:0;border-radius:0;border-width:2.5px 0 0;border-style:solid}.key.line.dashed{border-style:dashed}
.key.dot{border-radius:50%}.key.hollow-key{border-radius:50%;border:2px solid var(--c8)}
h2 .key,th .key{margin-right:8px}
.thread{stroke:var(--base);stroke-width:1.5}.hollow{fill:var(--card);stroke:var(--c8);stroke-width:1.8}
.arrows path{fill:none;stroke:var(--ink);stroke-width:.9;opacity:.55}marker path{fill:var(--ink)}
.scroll{overflow-x:auto;max-width:100%;background:
linear-gradient(90deg,var(--card) 30%,transparent) 0/40px 100% no-repeat local,
linear-gradient(270deg,var(--card) 30%,transparent) 100%/40px 100% no-repeat local,
linear-gradient(90deg,#0003,transparent) 0/12px 100% no-repeat scroll,
linear-gradient(270deg,#0003,transparent) 100%/12px 100% no-repeat scroll}.scroll svg.wide{min-width:960px}
details{margin-top:8px;font-size:13px}summary{cursor:pointer;width:max-content;padding:2px 0}
details .scroll{max-height:280px;overflow:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:4px 10px;border-bottom:1px solid var(--grid);white-space:nowrap}
th{font-weight:600}thead th{color:var(--soft);font-weight:500}
th:first-child,td:first-child,th.text{text-align:left}tbody tr:last-child>*{border-bottom:0}
table.facts{border-collapse:separate;border-spacing:0;min-width:min(100%,420px)}
header+.scroll{margin-top:18px}.scroll:has(>.facts){width:fit-content}.facts th,.facts td{padding:8px 14px}td.big{font-size:17px;font-weight:600}
td.text{text-align:left;white-space:normal;min-width:15ch}
table.meter{width:100%}.meter th[scope]{font-weight:400}
td.bar{background:linear-gradient(90deg,var(--pale) var(--v),transparent var(--v)) no-repeat}
.machine{display:grid;grid-template-columns:max-content 1fr;gap:6px 18px;margin:0;padding:14px 16px;font-size:13.5px}
.machine dt{color:var(--soft)}.machine dd{margin:0;overflow-wrap:anywhere;min-width:0}section>.machine{margin-top:16px}
.ramp{display:flex;align-items:center;flex-wrap:wrap;gap:2px;margin:8px 0 0;font-size:12.5px}
.ramp i{width:20px;height:12px;border-radius:2px}.ramp i:first-of-type{margin-left:6px}.ramp i:last-of-type{margin-right:6px}
:focus-visible{outline:2px solid var(--c0);outline-offset:2px;border-radius:4px}
@media (max-width:600px){main{padding:18px 12px 48px}h1{font-size:21px}.tiles{grid-template-columns:1fr 1fr;gap:8px}
.tiles li{padding:10px 11px}.tiles b{font-size:20px}figure{padding:12px 10px 10px}svg text{font-size:13px}
text.label{font-size:11.5px}.machine{grid-template-columns:1fr;gap:0}.machine dd{margin-bottom:8px}
.facts th,.facts td{padding:7px 10px}}
@media print{.plot .tip,details{display:none}body{background:#fff}}
.c0 polyline{stroke:var(--c0)}.c1 polyline{stroke:var(--c1)}.c2 polyline{stroke:var(--c2)}.c3 polyline{stroke:var(--c3)}
.c4 polyline{stroke:var(--c4)}.c5 polyline{stroke:var(--c5)}.c6 polyline{stroke:var(--c6)}.c7 polyline{stroke:var(--c7)}
.c8 polyline{stroke:var(--c8)}.c0 circle,.c0 .band,.f0{fill:var(--c0)}.c1 circle,.c1 .band,.f1{fill:var(--c1)}
.c2 circle,.c2 .band,.f2{fill:var(--c2)}.c3 circle,.c3 .band,.f3{fill:var(--c3)}.c4 circle,.c4 .band,.f4{fill:var(--c4)}
.c5 circle,.c5 .band,.f5{fill:var(--c5)}.c6 circle,.c6 .band,.f6{fill:var(--c6)}.c7 circle,.c7 .band,.f7{fill:var(--c7)}
i.f0{background:var(--c0)}i.f1{background:var(--c1)}i.f2{background:var(--c2)}i.f3{background:var(--c3)}
i.f4{background:var(--c4)}i.f5{background:var(--c5)}i.f6{background:var(--c6)}i.f7{background:var(--c7)}
i.c0{border-color:var(--c0)}i.c1{border-color:var(--c1)}i.c2{border-color:var(--c2)}i.c3{border-color:var(--c3)}
i.c4{border-color:var(--c4)}i.c5{border-color:var(--c5)}i.c6{border-color:var(--c6)}i.c7{border-color:var(--c7)}
i.c8{border-color:var(--c8)}
.p-data{fill:var(--dat);background:var(--dat)}.p-forward{fill:var(--fwd);background:var(--fwd)}
.p-backward{fill:var(--bwd);background:var(--bwd)}.p-compress{fill:var(--cmp);background:var(--cmp)}
.p-comm{fill:var(--com);background:var(--com)}.p-update{fill:var(--upd);background:var(--upd)}
.p-wait{fill:var(--wai);background:var(--wai)}.p-plan{fill:var(--c7);background:var(--c7)}
.dm4{--t:100%;--p:var(--cool)}.dm3{--t:75%;--p:var(--cool)}.dm2{--t:50%;--p:var(--cool)}.dm1{--t:25%;--p:var(--cool)}
.dp0{--t:0%;--p:var(--hot)}.dp1{--t:25%;--p:var(--hot)}.dp2{--t:50%;--p:var(--hot)}.dp3{--t:75%;--p:var(--hot)}
.dp4{--t:100%;--p:var(--hot)}
[class^=dm],[class^=dp]{fill:color-mix(in oklab,var(--p) var(--t),var(--mid));
background:color-mix(in oklab,var(--p) var(--t),var(--mid))}
.s0{--t:0%}.s1{--t:12%}.s2{--t:25%}.s3{--t:38%}.s4{--t:50%}.s5{--t:62%}.s6{--t:75%}.s7{--t:88%}.s8{--t:100%}
rect[class^=s],.ramp i[class^=s]{fill:color-mix(in oklab,var(--deep) var(--t),var(--pale));
background:color-mix(in oklab,var(--deep) var(--t),var(--pale))}
)css";

// Shows the values under the pointer, or under the arrow keys; they are read from the tables.
const char* const kReportScript = R"js(
'use strict';
for (const svg of document.querySelectorAll('svg[data-x]')) {
  const figure = svg.closest('figure'), tip = figure.querySelector('.tip'), cursor = svg.querySelector('.cursor');
  const [x0, x1, left, right] = svg.dataset.x.split(' ').map(Number);
  const unit = figure.querySelector('thead th:nth-child(2)').textContent;
  const series = new Map();
  for (const row of figure.querySelectorAll('tbody tr')) {
    const [name, x, y] = [...row.cells].map(cell => cell.textContent);
    if (!series.has(name)) series.set(name, []);
    series.get(name).push([Number(x), y]);
  }
  const xs = [...new Set([...series.values()].flat().map(p => p[0]))].sort((a, b) => a - b);
  if (!xs.length) continue;
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
  let at = -1;
  const show = index => {
    at = Math.max(0, Math.min(xs.length - 1, index));
    const place = left + (xs[at] - x0) / (x1 - x0) * (right - left);
    cursor.setAttribute('x1', place);
    cursor.setAttribute('x2', place);
    cursor.setAttribute('visibility', 'visible');
    tip.textContent = '';
    const head = document.createElement('b');
    head.textContent = unit + ' ' + Number(xs[at].toPrecision(6));
    tip.append(head);
    for (const [name, points] of series) {
      const line = document.createElement('div');
      line.textContent = name + ': ' + nearest(points, xs[at])[1];
      tip.append(line);
    }
    tip.hidden = false;
    const scale = svg.clientWidth / svg.viewBox.baseVal.width, room = svg.clientWidth - tip.offsetWidth;
    const wish = place * scale + (place * scale > room - 12 ? -tip.offsetWidth - 12 : 12);
    tip.style.left = Math.max(0, Math.min(wish, room)) + 'px';
  };
  const hide = () => { tip.hidden = true; cursor.setAttribute('visibility', 'hidden'); };
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const x = x0 + ((event.clientX - box.left) / box.width * svg.viewBox.baseVal.width - left) / (right - left) * (x1 - x0);
    show(xs.indexOf(nearest(xs.map(v => [v]), x)[0]));
  });
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('blur', hide);
  svg.addEventListener('focus', () => { if (svg.matches(':focus-visible')) show(at < 0 ? xs.length - 1 : at); });
  svg.addEventListener('keydown', event => {
    const step = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1}[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(step);
  });
}
document.documentElement.dataset.figures = document.querySelectorAll('figure').length;
)js";

}  // namespace heddle
