#!/usr/bin/env python3
"""Fetches the texts of the language classifier: training text and test pieces in 20 languages.

The training text is the prose of LibreOffice's help, the test text that of manual pages, both from Debian's
packages, so the two have different authors and subjects. Needs apt-get and dpkg-deb, and takes some minutes.

    get_texts.py [FOLDER] [--debs DIR]     default: text/ next to this script; DIR keeps the packages

train.jsonl holds {"label", "text"}, test.jsonl {"label", "length", "text"}, and sources.tsv the packages with
their versions and licences.
"""
import argparse
import collections
import gzip
import hashlib
import html.parser
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unicodedata

LANGUAGES = "cs da de el en es fi fr hu id it ja nl pl pt-br ru sv tr vi zh".split()
HAS_DEV = "cs da de es fr it ja nl pl pt-br ru".split()  # languages with a package of section 2 and 3 pages
TRAIN_BYTES = 1_800_000  # of text for each language
LENGTHS = (20, 50, 200)  # bytes of a test piece
PIECES = 500  # for each language and length
FEW_BYTES = 120_000  # of sentences in the pages; with fewer, phrases are taken too, and joined before cutting pieces
JOINED = 20  # paragraphs
SEED = 20
SHA256 = {
    "train.jsonl":
        "969f964eb9bec2b903ef3fc1c64e8a0268ddb59414a2ba9a1349da03c2287ee5",
    "test.jsonl":
        "597f773bf9c8178c455d2d6022c4b1c93fc40052881b52024eaa57b370177ed8",
}

# Names of options, programs, keys and menus stand between these two marks until a paragraph has been judged.
OPEN, CLOSE = "\ue000", "\ue001"
MARKS = str.maketrans("", "", OPEN + CLOSE)
SCRIPTS = {"el": "[Ͱ-Ͽἀ-῿]", "ru": "[Ѐ-ӿ]", "ja": "[぀-ヿ㐀-鿿々]", "zh": "[㐀-鿿]"}
LATIN = "[A-Za-zÀ-ɏḀ-ỿ]"
KANA = re.compile("[぀-ヿ]")
WIDE = "[　-ヿ㐀-鿿＀-￯]"
WORD = re.compile(r"[^\W\d_]{2,}")
SENTENCE_END = re.compile(r"[.!?。！？][\"'”’»“)）」』]*$")
CODE = re.compile(r"[{}\\=<>|#$^_~`@*]|://|www\.|--|::|\.\.|[/.]\w*/|%\w|\w\([a-z]{2,}\)")
QUOTED = re.compile(r"(?<!\w)['\"‘“„»«][\w -]{1,40}['\"’”“«»](?!\w)")  # a few words in quotes: often English
# Common English words that do not occur in the other languages.
ENGLISH = set("the and that with this are which from will when its your must should used these they if not".split())


def sources():
    """Yields (language, help package, packages of manual pages)."""
    for language in LANGUAGES:
        help_package = "libreoffice-help-" + {"en": "en-us", "zh": "zh-cn"}.get(language, language)
        pages = "manpages" if language == "en" else f"manpages-{language}"
        has_dev = language == "en" or language in HAS_DEV
        yield language, help_package, [pages] + [f"{pages}-dev"] * has_dev


# ---- What is prose ----

def tidy(text, wide):
    """Normal form C, single spaces, and in Chinese and Japanese no space between wide characters."""
    text = " ".join(unicodedata.normalize("NFC", text).split())
    text = re.sub(f" ([{CLOSE}]+)", r"\1 ", re.sub(f"([{OPEN}]+) ", r" \1", text)).strip()
    if wide:
        text = re.sub(f"(?<={WIDE}) (?={WIDE})", "", text)
    return re.sub(r"  +", " ", text)


def share(pattern, text):
    """The part of the letters that match."""
    return len(re.findall(pattern, text)) / max(1, sum(map(str.isalpha, text)))


def plain(text):
    """The text outside the marks and quotes."""
    return QUOTED.sub(" ", re.sub(f"{OPEN}[^{CLOSE}]*{CLOSE}?", " ", text))


def is_prose(text, language, phrases=False):
    """Whether a marked paragraph is running text in the language's own script: sentences, or at least a phrase."""
    bare = text.translate(MARKS)
    letters = sum(map(str.isalpha, bare))
    wide = language in ("ja", "zh")
    if letters < (15 if wide else 25 if phrases else 40) or not (phrases or SENTENCE_END.search(bare)):
        return False
    if not wide and len(bare.split()) < 6 or letters < 0.75 * len(bare.replace(" ", "")):
        return False
    if "info '(" in bare:  # a command for further reading, in English
        return False
    if len(CODE.findall(bare)) > len(bare) / 100 or sum(map(str.isalpha, plain(text))) < 0.6 * letters:
        return False
    if share(SCRIPTS.get(language, LATIN), bare) < 0.6:
        return False
    if language == "ja" and not KANA.search(bare) or language == "zh" and KANA.search(bare):
        return False
    return True


class English:
    """Knows the English packages' paragraphs and words, and so what was left untranslated elsewhere."""

    def __init__(self):
        self.paragraphs, self.counts, self.words = set(), collections.Counter(), set()

    def learn(self, paragraphs):
        for text in paragraphs:
            bare = text.translate(MARKS)
            self.paragraphs.add(bare)
            self.counts.update(word for word in WORD.findall(plain(text)) if word.islower())
        self.words = {word for word, count in self.counts.items() if count >= 3}

    def foreign(self, text):
        """The words outside the marks that English prose does not have. Those with a capital may be names."""
        return [word for word in WORD.findall(plain(text)) if word[0].islower() and word.lower() not in self.words]

    def has(self, text):
        """Whether a paragraph of another language's package is English: it is one of the English package's, or
        an eighth of its words are common English words, or four of five are names or in the English vocabulary."""
        words = [word.lower() for word in WORD.findall(plain(text))]
        if not words or text.translate(MARKS) in self.paragraphs:
            return True
        if not re.search(LATIN, "".join(words)) or share(LATIN, text) < 0.5:  # another script
            return False
        common = sum(word in ENGLISH for word in words)
        return common >= 0.125 * len(words) or len(self.foreign(text)) < 0.2 * len(words)


# ---- LibreOffice's help ----

class HelpParser(html.parser.HTMLParser):
    """Collects the paragraphs; code, hidden alternatives of other systems, menu paths and links are left out."""

    SKIPPED = {"pre", "code", "script", "style", "nav", "button", "label"}
    SKIPPED_CLASSES = {"howtoget", "relatedtopics", "bascode", "pycode", "iconcell", "noteicon"}
    SKIPPED_PARAGRAPHS = {"code", "related", "embedded", "howtogetheader", "tableheadintable"}
    MARKED = {"emph", "menuitem", "keycode", "literal", "input", "widget"}
    VOID = {"br", "img", "meta", "link", "input", "hr", "base", "col", "wbr", "source"}

    def __init__(self):
        super().__init__()
        self.stack, self.skipped, self.text, self.paragraphs = [], 0, None, []

    def handle_starttag(self, tag, attrs):
        if tag in self.VOID:
            if self.text is not None:
                self.text.append(" ")
            return
        attrs = dict(attrs)
        classes = set((attrs.get("class") or "").split())
        skip = (tag in self.SKIPPED or "hidden" in attrs or bool(classes & self.SKIPPED_CLASSES)
                or tag == "p" and bool(classes & self.SKIPPED_PARAGRAPHS))
        marked = tag == "span" and bool(classes & self.MARKED)
        self.stack.append((tag, skip, marked))
        self.skipped += skip
        if tag == "p":
            self.text = []
        elif marked and self.text is not None:
            self.text.append(OPEN)

    def handle_endtag(self, tag):
        if not any(name == tag for name, _, _ in self.stack):
            return
        while True:
            name, skip, marked = self.stack.pop()
            if marked and self.text is not None:
                self.text.append(CLOSE)
            if name == "p" and self.text is not None:
                if not self.skipped:
                    self.paragraphs.append("".join(self.text))
                self.text = None
            self.skipped -= skip
            if name == tag:
                return

    def handle_data(self, data):
        if self.text is not None and not self.skipped:
            self.text.append(data)


def help_paragraphs(root, language, english=None):
    """Yields the help's paragraphs as marked text; its files come in the same shuffled order for each language."""
    files = {str(path).partition("/text/")[2]: path for path in root.rglob("*.html") if "/text/" in str(path)}
    seen = set()
    names = sorted(files)
    random.Random(SEED).shuffle(names)
    for name in names:
        page = files[name].read_text(encoding="utf-8")
        start, end = page.find('<div id="DisplayArea"'), page.find('<div id="SearchFrame"')
        parser = HelpParser()
        parser.feed(page[max(0, start):end])
        for text in parser.paragraphs:
            text = tidy(text, language in ("ja", "zh"))
            bare = text.translate(MARKS)
            if bare in seen or not is_prose(text, language) or english and english.has(text):
                continue
            seen.add(bare)
            yield text


# ---- Manual pages ----

SPECIAL = {"aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "em": "—", "en": "–", "bu": "•", "co": "©",
           "rg": "®", "ga": "`", "ha": "^", "ti": "~", "rs": "\\", "mi": "−", "mu": "×", "pl": "+", "eq": "=",
           "+-": "±", "<=": "≤", ">=": "≥", "->": "→", "<-": "←", "Fo": "«", "Fc": "»", "Bq": "„", "bq": "‚",
           "hy": "-", "ul": "_", "ru": "_", "or": "|", "ba": "|", "at": "@", "sh": "#", "Do": "$", "sl": "/",
           "lB": "[", "rB": "]", "lC": "{", "rC": "}", "fo": "‹", "fc": "›", "de": "°", "ss": "ß", "Po": "£",
           "R": "®", "Tm": "™", "C`": '"', "C'": '"', "Aq": "'", "tm": "™", "S": "", "Eu": "€", "eu": "€", "mc": "µ"}
ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", ":": "\u0308", "~": "\u0303", ",": "\u0327", "v": "\u030c"}
ESCAPE = re.compile(r"""\\(?:f(?P<font>\[[^]]*\]|\(..|.)|(?:\(|\*\()(?P<two>..)|\*?\[(?P<long>[^]]*)\]|\*(?P<one>.)
                       |s[-+]?(?:\d|\(..|\[[^]]*\]|'[^']*')|[mMF](?:\[[^]]*\]|\(..|.)|[hvwlLDbxo]'[^']*'
                       |n[-+]?(?:\[[^]]*\]|\(..|.)|[kgY](?:\[[^]]*\]|\(..|.)|(?P<other>.)|$)""", re.VERBOSE)
ONE = {"-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "'": "'", "`": "`", "t": " ", ".": "."}
FONT_MACROS = {"B", "I", "BR", "BI", "IR", "IB", "RB", "RI", "SM", "SB"}
BREAKS = {"PP", "P", "LP", "br", "sp", "Sp", "RS", "RE", "IP", "HP", "SH", "SS", "TH", "TP", "TQ", "ft", "fi"}
IGNORED = {"ad", "hy", "nh", "PD", "ne", "na", "IX", "ss", "ll", "fam", "in", "ti", "ta", "ps", "lf", "mk", "tr", "nr",
           "ds", "cp", "it", "bp", "nop"}
BLOCKS = {"nf": "fi", "EX": "EE", "TS": "TE", "Vb": "Ve", "CS": "CE", "EQ": "EN", "SY": "YS", "PS": "PE"}


def special(name):
    if name.startswith("u") and re.fullmatch("u[0-9A-F]{4,6}(_[0-9A-F]{4,6})*", name):
        return "".join(chr(int(code, 16)) for code in name[1:].split("_"))
    if len(name) == 2 and name[0] in ACCENTS and name[1].isalpha():
        return unicodedata.normalize("NFC", name[1] + ACCENTS[name[0]])
    return SPECIAL.get(name, "\ufffd")


def unescape(line):
    """Plain text with marks; U+FFFD stands for an escape that this does not know."""
    is_open = False

    def replace(match):
        nonlocal is_open
        if (font := match["font"]) is not None:
            was_open, is_open = is_open, font.strip("[(]") not in ("", "R", "P", "1")
            return CLOSE * was_open + OPEN * is_open
        for group in ("two", "long", "one"):
            if match[group] is not None:
                return special(match[group])
        return ONE.get(match["other"], "") if match["other"] else ""
    text = ESCAPE.sub(replace, line)
    return text + CLOSE * is_open


def arguments(line):
    """The words of a macro's line."""
    return [quoted.replace('""', '"') if quoted or not bare else bare
            for quoted, bare in re.findall(r'"((?:[^"]|"")*)"?|((?:\\ |\S)+)', line)]


def roff_paragraphs(page):
    """Yields the marked paragraphs of a page in the man macros, and nothing for pages in mdoc macros. Names, synopses,
    headings, tags of lists, tables and code are left out."""
    paragraph, until, skip_next, depth, section = [], None, False, 0, 0
    for line in page.split("\n"):
        line = re.split(r'\\["#]', line, maxsplit=1)[0] if '\\"' in line or "\\#" in line else line
        request = re.match(r"[.'][ \t]*([^\s\\]*)[ \t]*(.*)", line)
        name, rest = request.groups() if request else (None, line)
        if until is not None:
            if name == until:
                until = None
            continue
        if depth or name in ("if", "ie", "el", "while"):  # the text does not depend on conditions
            depth += rest.count("\\{") - rest.count("\\}") - (name or "").count("\\}")
            depth = max(0, depth)
            continue
        if name in ("Dd", "Sh"):
            return
        if name in ("de", "am", "ig", "de1", "am1"):
            until = arguments(rest)[1] if name != "ig" and len(arguments(rest)) > 1 else \
                rest.strip() if name == "ig" and rest.strip() else "."
            continue
        text = None
        if name is None:
            if not line.strip() or line[0] in " \t":  # an empty or an indented line breaks the paragraph
                name, skip_next = "br", skip_next and not line.strip()
            else:
                text = unescape(line) + ("" if line.endswith("\\c") else "\n")
        elif name in FONT_MACROS:
            words = [unescape(word) for word in arguments(rest)]
            fonts = name if name not in ("SM", "SB") else "R"
            words = [OPEN + word.translate(MARKS) + CLOSE if fonts[i % len(fonts)] != "R" else word
                     for i, word in enumerate(words)]
            text = ("" if len(fonts) > 1 else " ").join(words) + "\n"
        elif name in IGNORED or name == "":
            continue
        if text is not None:
            if skip_next:
                skip_next = False
            elif section != 1:  # the first section is the name
                paragraph.append(text)
            continue
        if name in ("UR", "MT"):  # links stand outside the text, so their paragraph is not whole
            paragraph.append("\ufffd")
            continue
        if paragraph:
            yield "".join(paragraph)
            paragraph = []
        section += name == "SH"
        skip_next = name in ("TP", "TQ") or name in ("SH", "SS") and not rest.strip()
        until = BLOCKS.get(name)
    if paragraph:
        yield "".join(paragraph)


def page_paragraphs(roots, language, english=None, phrases=False):
    """Yields the manual pages' paragraphs as marked text."""
    seen = set()
    wide = language in ("ja", "zh")
    locale = {"en": "man", "pt-br": "pt_BR", "zh": "zh_CN"}.get(language, language)
    for root in roots:
        for path in sorted(root.glob(f"usr/share/man/{'' if locale == 'man' else locale + '/'}man*/*.gz")):
            if path.is_symlink():
                continue
            page = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
            for text in roff_paragraphs(page):
                if wide:  # the lines of a paragraph are joined without a space between wide characters
                    text = re.sub(f"(?<={WIDE})([{CLOSE}]*)\n([{OPEN}]*)(?={WIDE})", r"\1\2", text)
                text = tidy(text, wide)
                bare = text.translate(MARKS)
                if "\ufffd" in bare or bare in seen or not is_prose(text, language, phrases):
                    continue
                if english and english.has(text):
                    continue
                seen.add(bare)
                yield text


# ---- Test pieces ----

def pieces(text, length, language, english):
    """Yields stretches of a marked paragraph that do not overlap, of at most `length` bytes and as long as whole
    characters allow. Each starts with a letter, at a word's start, or anywhere in Chinese and Japanese."""
    wide = language in ("ja", "zh")
    marked, flags, is_open = [], [], False
    for char in text:
        if char in (OPEN, CLOSE):
            is_open = char == OPEN
        else:
            marked.append(char)
            flags.append(is_open)
    bare, sizes = "".join(marked), [len(char.encode()) for char in marked]
    spare = len(bare) * (sum(sizes) % length) // sum(sizes) // 2  # characters
    position = random.Random(f"{SEED} {length} {bare}").randrange(spare + 1)
    while position < len(bare):
        if not bare[position].isalpha() or not wide and position and not bare[position - 1].isspace():
            position += 1
            continue
        end, size = position, 0
        while end < len(bare) and size + sizes[end] <= length:
            size += sizes[end]
            end += 1
        if end == len(bare) and size < length - 3:
            return
        piece = bare[position:end]
        outside = "".join(" " if flag else char for char, flag in zip(piece, flags[position:end]))
        if is_labelled(piece, outside, length, language, english):
            yield piece.strip()
        position = end


def is_labelled(piece, outside, length, language, english):
    """Whether a piece can be said to be in the language of its page. Half of its characters must be letters. In
    Greek, Russian, Japanese and Chinese more than half of the letters must be of the language's own script, so that
    pieces of mostly Latin names are excluded. In the other languages but English, one word in each 30 bytes must
    begin with a small letter, be outside the names of options and programs, and not be a word of the English packages,
    so that pieces like "GNU General Public" are excluded. A Japanese piece may be of Chinese characters alone."""
    letters = sum(map(str.isalpha, piece))
    if 2 * letters < len(piece):
        return False
    if language in SCRIPTS:
        return share(SCRIPTS[language], piece) > 0.5
    return language == "en" or 30 * len(english.foreign(outside)) >= length


# ---- Files ----

OWN_LICENCES = {"manpages-ja": "each page's own, as of the original", "manpages-tr": "each page's own, else GPL",
                "manpages-dev": "as manpages"}


def licence(package, root):
    """The licence of "Files: *" in the package's copyright file; single files in the package may have others."""
    for name, words in OWN_LICENCES.items():
        if package in (name, f"{name}-dev"):
            return words
    text = (root / f"usr/share/doc/{package}/copyright").read_text(encoding="utf-8")
    return re.search(r"^License: *(\S.*)$", text, re.MULTILINE)[1]


def unpack(package, work, debs):
    if not list(debs.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "download", "-qq", package], cwd=debs, check=True)
    [deb] = debs.glob(f"{package}_*.deb")
    root = work / package
    subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    version = subprocess.run(["dpkg-deb", "-f", deb, "Version"], check=True, capture_output=True, text=True).stdout
    return root, f"{package}\t{version.strip()}\t{licence(package, root)}\n"


def write(path, rows):
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    print(f"{path}  {len(rows)} lines, {len(data)} bytes  sha256 {digest}")
    return digest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).resolve().parent / "text"
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=default)
    parser.add_argument("--debs", type=pathlib.Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    train, test, packages, pages_of = [], [], [], {}
    help_english, page_english = English(), English()
    print("language  help: bytes  paragraphs  pages: bytes  paragraphs")
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        debs = (options.debs or work / "debs").resolve()
        debs.mkdir(parents=True, exist_ok=True)
        for language, help_package, page_packages in sorted(sources(), key=lambda source: source[0] != "en"):
            roots = []
            for package in [help_package, *page_packages]:
                root, line = unpack(package, work, debs)
                roots.append(root)
                packages.append(line)
            is_english = language == "en"
            taken, paragraphs, everything = 0, [], []
            for text in help_paragraphs(roots[0], language, None if is_english else help_english):
                everything.append(text)
                bare = text.translate(MARKS)
                if taken + len(bare.encode()) <= TRAIN_BYTES:
                    taken += len(bare.encode())
                    paragraphs.append(bare)
                elif not is_english:
                    break
            train += [{"label": language, "text": text} for text in paragraphs]
            for phrases in (False, True):
                pages = list(page_paragraphs(roots[1:], language, None if is_english else page_english, phrases))
                size = sum(len(text.translate(MARKS).encode()) for text in pages)
                if size >= FEW_BYTES:
                    break
            if is_english:
                help_english.learn(everything)
                page_english.learn(everything + pages)
            pages_of[language] = pages, phrases
            print(f"{language:8}  {taken:11}  {len(paragraphs):10}  {size:12}  {len(pages):10}", flush=True)
            for root in roots:
                subprocess.run(["rm", "-r", root], check=True)
    # A paragraph or a piece that stands in the pages of two languages has no sure label.
    sharing = collections.Counter(text for pages, _ in pages_of.values() for text in pages)
    for language, (pages, phrases) in pages_of.items():
        pages = [text for text in pages if sharing[text] == 1]
        passages = [" ".join(pages[i:i + JOINED]) for i in range(0, len(pages), JOINED)] if phrases else pages
        counts = []
        for length in LENGTHS:
            found = sorted({piece for text in passages for piece in pieces(text, length, language, page_english)})
            random.Random(SEED).shuffle(found)
            test += [{"label": language, "length": length, "text": piece} for piece in found[:PIECES]]
            counts.append(f"{min(PIECES, len(found))} of {len(found)}")
        print(f"{language:8}  pieces of {', '.join(map(str, LENGTHS))} bytes: {', '.join(counts)}", flush=True)
    labels = collections.Counter(text for text, _ in {(row["text"], row["label"]) for row in test})
    test = [row for row in test if labels[row["text"]] == 1]
    random.Random(SEED).shuffle(train)
    random.Random(SEED).shuffle(test)
    (options.folder / "sources.tsv").write_text("".join(sorted(packages)), encoding="utf-8")
    digests = {name: write(options.folder / name, rows)
               for name, rows in (("train.jsonl", train), ("test.jsonl", test))}
    wrong = [name for name, digest in digests.items() if SHA256.get(name, digest) != digest]
    if wrong:
        sys.exit(f"{', '.join(wrong)}: not what the shipped model was trained on and tested with")


if __name__ == "__main__":
    main()
