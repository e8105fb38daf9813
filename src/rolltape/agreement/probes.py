"""Texts on which two tokenizers that are not the same are likely to differ. Deterministic and pure.

Each kind of text is one function of a random source; `probe_texts` takes them in turn, so that any number of texts
holds all kinds. Tokenizers part at the joints: where letters meet digits, marks, spaces, line ends, other scripts.
"""

import json
import random
import sys
import unicodedata
from collections.abc import Callable, Iterator

PROBES = 5000
"""How many texts make a tokenizer trusted."""

Source = random.Random

SCRIPTS = {
    "Latin": (0x41, 0x24F),
    "Greek": (0x391, 0x3C9),
    "Cyrillic": (0x410, 0x45F),
    "Armenian": (0x531, 0x586),
    "Hebrew": (0x591, 0x5EA),
    "Arabic": (0x610, 0x6D3),
    "Devanagari": (0x900, 0x96F),
    "Bengali": (0x985, 0x9EF),
    "Tamil": (0xB85, 0xBEF),
    "Thai": (0xE01, 0xE5B),
    "Tibetan": (0xF00, 0xF47),
    "Georgian": (0x10A0, 0x10FF),
    "Ethiopic": (0x1200, 0x1248),
    "Khmer": (0x1780, 0x17E9),
    "Hangul": (0xAC00, 0xD7A3),
    "Hiragana": (0x3041, 0x3096),
    "Katakana": (0x30A1, 0x30FA),
    "Han": (0x4E00, 0x9FFF),
    "Han B": (0x20000, 0x2A6DF),
    "Gothic": (0x10330, 0x1034A),
}
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "It's what they'd said: we're late, I'll go, you've won, I'm sure he can't.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णु",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "Tiếng Việt có sáu thanh: ngang, huyền, sắc, hỏi, ngã, nặng.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
)
CODE = (
    "def f{n}(x: int = {n}) -> list[int]:\n    return [i**2 for i in range(x) if i % {n} != 0]\n",
    'if (a[{n}] >= 0x{n:x}) {{\n\tprintf("%05d\\n", a[i++]);\n}} else {{ goto end{n}; }}\n',
    "const {{ a, b: [c] }} = await fetch(`/api/${{id}}/{n}`).then(r => r?.json() ?? null);\n",
    "fn main<'a>() -> Result<(), Box<dyn Error>> {{ let v = vec![{n}u8; 1_000]; Ok(()) }}\n",
    "SELECT t.id, COUNT(*) FROM t{n} AS t WHERE t.x <> {n}.50 GROUP BY 1 HAVING COUNT(*) > {n};\n",
    '#!/bin/sh\nfor f in *.{n}; do [ -e "$f" ] && mv -- "$f" "${{f%.*}}.bak" || exit {n}; done\n',
    "<div class=\"a-{n}\" style='width:{n}%'>&nbsp;&#{n};<!-- {n} --></div>\r\n",
    "public static <T extends Comparable<T>> int f{n}(T... ts) {{ return ts.length >>> {n}; }}\n",
    "main = mapM_ (print . (`div` {n})) $ filter even [{n}..] >>= \\x -> pure (x :: Int)\n",
    "\\begin{{align}} \\int_{{0}}^{{{n}}} e^{{-x^2}}\\,dx &= \\frac{{\\sqrt{{\\pi}}}}{{{n}}} \\\\ \\end{{align}}\n",
    "@@ -{n},7 +{n},8 @@ class A:\n-    x = {n}\n+    x = {n}.0  # was {n}\n \n",
    'FROM scratch\nCOPY --from=b{n} /a /b\nENV K="v {n}"\nCMD ["sh", "-c", "echo $K"]\n',
    "key{n}:\n  - &a {{x: {n}, y: ~}}\n  - *a\n  - |\n    text {n}\n",
)
EMOJI = (*"😀🙂🎉🚀❤✨👍🤖🧪", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👨🏽‍💻", "🧑🏿‍🚀", "❤️‍🔥", "👁️‍🗨️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿")  # fmt: skip
MARKS = "\u0300\u0301\u0308\u0327\u0323\u034f\u0361\u0489\u20dd\u20e3\ufe0e\ufe0f\u3099\u0591\u064b\u093c\u0e48"
SPACES = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad\u180e\u061c\u202e\u2066\ufffc\ufffd"
NUMERALS = "²³¹¼½¾①②⑩Ⅳⅻↂ٠١٢٣۴५६৭๘๙〇一二三㊿𝟘𝟙𝟗𝟬🄀፩௧½"
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<s>", "</s>", "[INST]", "<think>", "<|im_")


def probe_texts(count: int = PROBES, seed: int = 0) -> Iterator[str]:
    """`count` texts, the same ones for the same seed. None holds a lone surrogate: those have no UTF-8."""
    kinds = list(KINDS)
    for number in range(count):
        yield kinds[number % len(kinds)](Source(f"{seed}/{number}"))


def _join(source: Source, parts: list[str]) -> str:
    return source.choice(["", " ", " ", "  ", "\n", ", ", "-"]).join(parts)


def _from(source: Source, letters: str | tuple[str, ...], longest: int) -> str:
    return "".join(source.choices(letters, k=source.randint(1, longest)))


def _word(source: Source, longest: int = 9) -> str:
    first, last = source.choice(list(SCRIPTS.values()))
    return "".join(chr(source.randint(first, last)) for _ in range(source.randint(1, longest)))


def _digits(source: Source) -> str:
    digits = _from(source, "0123456789", 18)
    shapes = [digits, f"-{digits}", f"{digits}.{digits[:3]}", f"{digits}e-{digits[:2]}", f"0x{digits}", f"v{digits}rc1"]
    shapes += [
        f"{int(digits):,}",
        f"{digits}%",
        f"${digits}",
        f" {digits} ",
        f"a{digits}b",
        f"2026-11-{digits[:2]}T09:00",
    ]
    return _join(source, source.choices([*shapes, f"{digits}th", f"({digits})", f"_{digits}_"], k=source.randint(1, 8)))


def _numerals(source: Source) -> str:
    return _join(source, [_from(source, NUMERALS + "07", 6) + _from(source, "ax ", 2) for _ in range(4)])


def _code(source: Source) -> str:
    text = "".join(snippet.format(n=source.randint(0, 99999)) for snippet in source.choices(CODE, k=2))
    indent = source.choice(["", "  ", "    ", "\t", "\t\t"])
    return "\n".join(indent + line for line in text.split("\n")).replace("\n", source.choice(["\n", "\n", "\r\n"]))


def _emoji(source: Source) -> str:
    flags = "".join(chr(0x1F1E6 + source.randrange(26)) for _ in range(source.randint(1, 5)))
    keycap = source.choice("0123456789#*") + "\ufe0f\u20e3"
    any_emoji = chr(source.randint(0x1F300, 0x1FAFF))
    return _join(source, source.choices([*EMOJI, flags, keycap, any_emoji, "ok"], k=source.randint(1, 8)))


def _script(source: Source) -> str:
    return _join(source, [_word(source) for _ in range(source.randint(1, 8))])


def _sentence(source: Source) -> str:
    return _join(source, source.choices(SENTENCES, k=source.randint(1, 3)))


def _cut_sentence(source: Source) -> str:
    text = source.choice(SENTENCES)
    start = source.randrange(len(text))
    return text[start : start + source.randint(1, 20)]


def _marks(source: Source) -> str:
    composed = "".join(source.choice("aeionuñgk1 -" + "אبकก") + _from(source, MARKS, 3) for _ in range(8))
    return source.choice([composed, *(unicodedata.normalize(form, composed) for form in ("NFC", "NFD", "NFKD"))])


def _spaces(source: Source) -> str:
    few = source.choice([" ", " \n", " \t", "\n", "\r\n", SPACES])
    return "".join(_from(source, few, 12) + source.choice(["a", "b.", "7", "é", "", "(", "'s", "中"]) for _ in range(6))


def _controls(source: Source) -> str:
    controls = "".join(map(chr, [*range(32), 127, *range(128, 160)])) + INVISIBLE
    return "".join(_from(source, controls, 3) + source.choice(["a", " ", "1", "word", ""]) for _ in range(6))


def _url(source: Source) -> str:
    domain = source.choice(["com", "co.uk", "xn--p1ai"])
    host = f"{_from(source, 'abcxyz-', 8)}.example.{domain}:{source.randint(1, 65535)}"
    path = "/".join(_from(source, "abcXYZ019%_-.~", 7) for _ in range(3))
    query = f"q={_from(source, 'a1+&=%', 9)}&é={source.randint(0, 999)}"
    return f"https://user:p%40@{host}/{path}?{query}#s-{path[:4]} me@{host}"


def _json(source: Source) -> str:
    value = {
        _from(source, "abc_", 5): [source.random(), source.randint(-(10**9), 10**9), None, True, 1e-30],
        "text": _word(source) + '"\\/\n\t\u2028',
        "nested": {"a": {"b": [[], {}, ""]}},
    }
    return json.dumps(value, indent=source.choice([None, 1, 2, 4, "\t"]), ensure_ascii=source.random() < 0.5)


def _long_word(source: Source) -> str:
    unit = source.choice(["a", "ab", "Ha", "!", "=", "-", "_", "0", "7", "é", "中", "🙂", "\u0301", " ", "\n", "://"])
    random_word = _from(source, "abcdefghijklmnopqrstuvwxyzABCDEFG", 200)
    return source.choice([unit * source.randint(1, 300), random_word, random_word + unit * 20 + random_word])


def _contractions(source: Source) -> str:
    tails = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\u2019s", "''", "'", "'1", "'é", "' s")
    heads = ("I", "we", " you", "7", "é", "中", ")", "\n")
    return "".join(source.choice(heads) + source.choice(tails) for _ in range(8))


def _punctuation(source: Source) -> str:
    signs = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡¿«»“”„‘’…—–·•°§¶€£¥©®™±×÷≠≤∞∑√←→⇒■□▲★♥、。「」!?"  # noqa: RUF001
    return "".join(_from(source, signs, 5) + source.choice(["", " ", "a", "1", "\n"]) for _ in range(6))


def _specials(source: Source) -> str:
    return "".join(source.choice(SPECIALS) + source.choice(["", " ", "user\n", "x", "\n\n", "1"]) for _ in range(5))


def _any_unicode(source: Source) -> str:
    return "".join(_character(source, sys.maxunicode) for _ in range(source.randint(1, 24)))


def _any_plane_zero(source: Source) -> str:
    return "".join(_character(source, 0xFFFF) + source.choice(["", "", " ", "a"]) for _ in range(source.randint(1, 24)))


def _character(source: Source, last: int) -> str:
    while True:
        code = source.randint(0, last)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def _mixture(source: Source) -> str:
    short = [kind for kind in KINDS if kind not in (_mixture, _code, _json)]
    return _join(source, [kind(source)[:40] for kind in source.choices(short, k=4)])


KINDS: tuple[Callable[[Source], str], ...] = (
    _digits,
    _numerals,
    _code,
    _emoji,
    _script,
    _sentence,
    _cut_sentence,
    _marks,
    _spaces,
    _controls,
    _url,
    _json,
    _long_word,
    _contractions,
    _punctuation,
    _specials,
    _any_unicode,
    _any_plane_zero,
    _mixture,
)
