"""Texts on which engines are compared and by which a tokenizer's behaviour is recognised."""

from __future__ import annotations

from typing import Final

# Part of every dataset's identity through the behavioural fingerprint: never change it, add a new set.
FINGERPRINT_TEXTS: Final = (
    "",
    " ",
    "Hello world",
    " Hello,  world!\n",
    "It's they're we'll I've I'd I'M CAN'T",
    "def f(x):\n\treturn {x: x ** 2}\r\n",
    "3.14159 1,234,567 0x1F 10000000",
    "na\u00efve caf\u00e9 cafe\u0301 \u00dcber stra\u00dfe",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd "
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2603\ufe0f \U0001f1eb\U0001f1f7",
    "<s> </s> <unk> <|endoftext|> <pad> [CLS] [SEP] [INST] <|im_start|>",
    "\u2581under \u2581\u2581 score",
    "tabs\t\tand\u00a0no-break\u2003em\u3000ideographic \x00\x01\x7f",
    "   leading and trailing   ",
    "a" * 40 + " " * 40 + "=" * 40 + "\n" * 5,
    "https://example.org/a/b?c=d&e=%20f#g user@example.org",
    "\ufeffbom \ufffd \u2028 \u0085 end",
)
_WORDS: Final = (
    "a",
    "Ab",
    "the",
    "don't",
    "I'LL",
    "x's",
    "\u017f",
    "\u01c5",
    "\u02b0",
    "\u0661\u0662",
    "\u00b2",
    "12",
    "1234",
)
_GAPS: Final = (
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\r\n",
    " \n",
    "\n ",
    "\t",
    " \t ",
    "\u00a0",
    "\u3000",
    "\x00",
    "\u200b",
    "\u2581",
)
_SIGNS: Final = (
    ".",
    "'",
    "''",
    "\u2019s",
    "-",
    "--",
    "/",
    "//\n",
    "!?\r\n",
    "$",
    "_",
    "\u3002",
    "\u0301",
    "\u20ac",
    "\U0001f600",
    "<",
    "</s>",
)


def adversarial_texts() -> list[str]:
    """Return about 500 short texts around the borders where pre-tokenizers decide differently."""
    pairs = [left + gap + right for left in _WORDS for gap in _GAPS for right in _WORDS[::3]]
    signs = [f"x{gap}{sign}{gap}y" for sign in _SIGNS for gap in _GAPS] + [
        sign * n for sign in _SIGNS for n in (1, 2, 5, 33)
    ]
    runs = [
        unit * n
        for unit in ("a", "ab", " ", "\n", "0", "=-", "\u4e00", "\u2581", "\t")
        for n in (2, 3, 15, 16, 17, 63, 64, 65, 257)
    ]
    return [*FINGERPRINT_TEXTS, *pairs, *signs, *runs, " ".join(pairs), "".join(signs), "\n".join(runs)]
