"""The style sheet of the report: light or dark as the reader's system is, and good to print."""

from typing import Final

# Hues that the colour-blind tell apart as well, each a little lighter on dark.
_LIGHT: Final = (
    *("#1f6fb2", "#c8501e", "#17806d", "#8e4aa8", "#a07800", "#c2325b", "#4d7a1f", "#5f6b7a"),
)
_DARK: Final = (
    *("#6cb4ee", "#f0905f", "#4fc3ab", "#c793dd", "#dcb64b", "#f0809e", "#98c56a", "#a9b4c2"),
)


def _variables(colours: tuple[str, ...]) -> str:
    return "".join(f"--s{number}:{colour};" for number, colour in enumerate(colours, 1))


_USES: Final = "".join(
    f".line.c{n}{{stroke:var(--s{n})}}.dot.c{n},.bar.c{n}{{fill:var(--s{n})}}"
    f".legend .c{n}{{background:var(--s{n})}}"
    for n in range(1, len(_LIGHT) + 1)
)

STYLE: Final = f"""
:root{{color-scheme:light dark;--page:#fff;--text:#1c2430;--soft:#5b6675;--grid:#dfe3e8;
--card:#f5f7f9;{_variables(_LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{--page:#14181e;--text:#e4e8ee;--soft:#9aa6b5;
--grid:#2c343f;--card:#1c222a;{_variables(_DARK)}}}}}
body{{margin:0;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}}
main{{max-width:900px;margin:0 auto;padding:24px 20px 60px}}
h1{{font-size:26px;margin:0}}h2{{font-size:19px;margin:40px 0 4px}}
h3{{font-size:15px;margin:20px 0 4px}}
p{{margin:4px 0 10px}}section>p,.span,.nothing{{color:var(--soft)}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:10px;
margin:20px 0}}
.tiles div{{background:var(--card);border-radius:8px;padding:10px 14px}}
.tiles dt{{color:var(--soft);font-size:13px}}.tiles dd{{margin:0;font-size:22px;font-weight:600}}
.tiles small{{color:var(--soft)}}
svg{{width:100%;height:auto;display:block;font:12px system-ui,sans-serif}}
.grid{{stroke:var(--grid)}}.mark{{stroke:var(--soft)}}.tick{{fill:var(--soft)}}.name{{fill:var(--text)}}
.line{{fill:none;stroke-width:2;stroke-linejoin:round}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:6px 0 0;padding:0 0 0 64px;
font-size:13px;color:var(--soft)}}
.legend i{{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}}
details{{margin-top:10px}}summary{{cursor:pointer;color:var(--soft)}}
.wide{{overflow-x:auto}}
table{{border-collapse:collapse;margin:8px 0;font-variant-numeric:tabular-nums}}
th,td{{text-align:right;padding:3px 14px 3px 0;border-bottom:1px solid var(--grid)}}
th{{color:var(--soft);font-weight:500}}th:first-child,td:first-child{{text-align:left}}
{_USES}
@media print{{details{{display:none}}section{{break-inside:avoid}}}}
"""
