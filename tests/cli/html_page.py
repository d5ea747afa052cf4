"""The common part of the tests of ckpt-inspect --html: a strict reader of the page."""
import html.parser
import re

VOID = {"meta", "link", "br", "wbr", "img", "hr", "input"}


class Element:

    def __init__(self, tag, attributes):
        self.tag = tag
        self.attributes = dict(attributes)
        self.children = []  # elements and text

    def __getitem__(self, name):
        return self.attributes[name]

    def classes(self):
        return (self.attributes.get("class") or "").split()

    def text(self):
        return "".join(c if isinstance(c, str) else c.text() for c in self.children)

    def elements(self):
        return [c for c in self.children if isinstance(c, Element)]

    def walk(self):
        yield self
        for child in self.elements():
            yield from child.walk()

    def all(self, tag, cls=None):
        return [e for e in self.walk() if e.tag == tag and (cls is None or cls in e.classes())]

    def one(self, tag, cls=None):
        found = self.all(tag, cls)
        assert len(found) == 1, f"{len(found)} elements {tag} {cls}"
        return found[0]


class Page(html.parser.HTMLParser):
    """The elements of a page. Raises AssertionError for an element that is not closed where it must be, for
    an attribute twice, and for characters that HTML forbids."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        bad = re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]", text)
        assert not bad, f"character {bad and bad.group()!r}"
        self.root = Element("", [])
        self._open = [self.root]
        self._doctype = None
        self.feed(text)
        self.close()
        assert self._open == [self.root], f"{self._open[-1].tag} is not closed"
        assert self._doctype == "DOCTYPE html"

    def handle_decl(self, decl):
        self._doctype = decl

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        element = Element(tag, attrs)
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        assert any(e.tag == "svg" for e in self._open), f"<{tag}/> outside of svg"
        self._open[-1].children.append(Element(tag, attrs))

    def handle_endtag(self, tag):
        assert self._open[-1].tag == tag, f"</{tag}> closes {self._open[-1].tag}"
        self._open.pop()

    def handle_data(self, data):
        self._open[-1].children.append(data)

    def unknown_decl(self, data):
        raise AssertionError(data)

    def handle_comment(self, data):
        raise AssertionError(f"comment {data}")

    def handle_pi(self, data):
        raise AssertionError(data)

    def section(self, name):
        """The section with this id, or None."""
        found = [e for e in self.root.all("section") if e["id"] == name]
        assert len(found) < 2
        return found[0] if found else None


def share(percent):
    assert percent.endswith("%"), percent
    return float(percent[:-1]) / 100


class Cell:
    """One of the treemap: its place in parts of the map, its bytes, what its title says."""

    def __init__(self, element):
        self.x, self.y, self.width, self.height = (share(element[a]) for a in ("x", "y", "width", "height"))
        self.bytes = int(element["data-bytes"])
        self.title = element.one("title").text()
        self.name = self.title.rsplit(": ", 1)[0]
        self.colour, = element.all("rect")[0].classes()


def treemap_cells(page):
    return [Cell(e) for e in page.section("modules").one("svg", "treemap").elements()]


def rows_of(table):
    """The cells of a table's body: lists of elements."""
    return [row.elements() for row in table.one("tbody").elements()]
