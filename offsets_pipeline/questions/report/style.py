"""The style and the script of the page. Both are in the page itself, allowed by their hashes."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--page:#fff;--box:#f5f6f8;--text:#1a1d21;--soft:#50565e;--rule:#d5d9df;--grid:#e4e7eb;
--link:#0b57d0;--bar:#2f6fb5;--ok:#176b3a;--warn:#8a5300;--err:#b3261e;
--s0:#0067a5;--s1:#b3440f;--s2:#00755a;--s3:#8a3c8f;--s4:#6f5f00;--s5:#a3204f}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--box:#1d2125;--text:#e8eaed;--soft:#a9b0b8;--rule:#3a4047;
--grid:#2a2f35;--link:#8ab4f8;--bar:#5b9bdc;--ok:#6fcf97;--warn:#f2b35c;--err:#ff8a80;
--s0:#5fb0ee;--s1:#ff9b63;--s2:#4fcfa8;--s3:#d99be0;--s4:#d8c24a;--s5:#ff8fb3}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",
"Noto Sans","Liberation Sans",Arial,sans-serif}
header,main,footer{max-width:1100px;margin:0 auto;padding:0 16px}
header{padding-top:20px}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 4px}
h2{font-size:1.2rem;margin:36px 0 8px;padding-top:8px;border-top:1px solid var(--rule)}
p{margin:6px 0;max-width:75ch}
a{color:var(--link)}
.soft,footer,figcaption,caption{color:var(--soft)}
.skip{position:absolute;left:-999px}.skip:focus{position:static}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
dl.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:16px 0}
dl.tiles div{background:var(--box);border:1px solid var(--rule);border-radius:6px;padding:10px 12px}
dl.tiles dt{color:var(--soft);font-size:.85rem}
dl.tiles dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.note{border-left:4px solid var(--warn);background:var(--box);padding:8px 12px;margin:10px 0}
.scroll{overflow-x:auto;margin:8px 0}
.newest{direction:rtl}.newest>*{direction:ltr}
figure{margin:10px 0}
figure svg{display:block;width:100%;min-width:640px;height:auto}
figure svg text{font-size:12px;fill:var(--text)}
.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--soft);fill:none}
.bar{fill:var(--bar)}.mark{fill:var(--err)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:4px 0}
ul.legend li{display:flex;align-items:center;gap:6px;min-width:0;overflow-wrap:anywhere}
ul.legend svg{flex:none;width:34px;min-width:0;height:10px}
.s0 .line{stroke:var(--s0)}.s0 .dot{fill:var(--s0)}
.s1 .line{stroke:var(--s1);stroke-dasharray:8 3}.s1 .dot{fill:var(--s1)}
.s2 .line{stroke:var(--s2);stroke-dasharray:3 3}.s2 .dot{fill:var(--s2)}
.s3 .line{stroke:var(--s3);stroke-dasharray:10 3 2 3}.s3 .dot{fill:var(--s3)}
.s4 .line{stroke:var(--s4);stroke-dasharray:2 5}.s4 .dot{fill:var(--s4)}
.s5 .line{stroke:var(--s5);stroke-dasharray:14 4}.s5 .dot{fill:var(--s5)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:4px 0}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{font-weight:600}
td.n,th.n{text-align:right;white-space:nowrap}
.n+td:not(.n),.n+th:not(.n){padding-left:14px}
td.t,th.t{white-space:nowrap}
td.name,th.name{overflow-wrap:anywhere;min-width:16ch}
.OK{color:var(--ok)}.WARN{color:var(--warn);font-weight:600}.ERR{color:var(--err);font-weight:600}
summary{cursor:pointer;color:var(--link);overflow-wrap:anywhere}
.part{border-bottom:1px solid var(--rule);padding:4px 0}
input[type=search]{font:inherit;max-width:100%;padding:4px 8px}
footer{margin-top:40px;padding-bottom:24px;font-size:.85rem}
@media print{.skip,header p{display:none}}
"""

#: Shows the groups whose names contain what the reader types. Without the script a browser finds them in the page.
FIND = """
const find=document.getElementById("find");
find.closest("p").hidden=false;
function filter(){
  const wanted=find.value.toLowerCase();
  for(const each of document.querySelectorAll("#groups tbody tr,.part"))
    each.hidden=!each.querySelector("td,summary").textContent.toLowerCase().includes(wanted);
  const more=document.getElementById("more");
  if(more&&wanted)more.open=true;
}
find.addEventListener("input",filter);
"""

#: Replaces the contents of the page at an interval, unless the reader turned that off.
REFRESH = """
const box=document.getElementById("live"),said=document.getElementById("said"),main=document.querySelector("main");
const every=Number(document.documentElement.dataset.every);
let waiting=false;
async function refresh(){
  if(!box.checked||document.hidden||waiting||main.querySelector(":focus-visible"))return;
  waiting=true;
  try{
    const answer=await fetch("fragment",{cache:"no-store"});
    const text=await answer.text();
    if(!answer.ok)throw new Error(text);
    const open=[...main.querySelectorAll("details[open]")].map(each=>each.id);
    main.innerHTML=text;
    open.forEach(id=>document.getElementById(id)?.setAttribute("open",""));
    filter();
    said.textContent="";
  }catch(error){
    said.textContent="The page is not up to date: "+error.message;
  }finally{waiting=false}
}
setInterval(refresh,every);
"""
