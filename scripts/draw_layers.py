#!/usr/bin/env python3
"""Draws lib/layers.svg: the modules of the library and the tools in their layers, with the includes between them.

    scripts/draw_layers.py            writes lib/layers.svg
    scripts/draw_layers.py --check    exits 1 with the reason if the includes break a rule, or if lib/layers.svg is
                                      not current

A module is a folder of lib/ with everything below it; apps/ is one module. A module is one layer above the highest
module that it includes. An arrow is an include; arrows that follow from others are left out. The width of a module shows its number of lines, in steps of 500, so that few
changes of code change the picture.

The rules: no modules, and no folders of a module, include each other in a circle. Nothing in lib/ includes apps/, and
lib/ has at most 22 modules in at most 10 layers.

The same sources always give the same bytes.
"""
import argparse
import colorsys
import itertools
import os
import pathlib
import re
import sys

from check_includes import circles

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = pathlib.Path("lib/layers.svg")
TOPS = ("lib", "apps")
MAX_MODULES = 22  # in lib/
MAX_LAYERS = 10
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)

# The drawing, in pixels.
STEP = 500  # lines
WIDTH_OF_STEP = 30
LEAST_WIDTH = 104
MODULE_HEIGHT = 50
LAYER_HEIGHT = 100
SHAFT = 22  # the width of a passing arrow in a layer
GAP = 22
MARGIN = 28
NUMBERS = 44  # the column of layer numbers
TITLE = 74
LEGEND = 46
CORNER = 8
ARROW = 7
TO_THE_MIDDLE = 0.6  # counts like so many arrows


class Disorder(Exception):
    """A broken rule, as a text for the user."""


def sources(root):
    """Relative paths of all C++ files, sorted."""
    for top in TOPS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                yield path.relative_to(root)


def module_of(path):
    """'inspect' for lib/inspect/verify/verify.h."""
    return path.parts[1] if path.parts[0] == "lib" else "apps"


def resolve(root, path, name):
    """The project's file that `#include "name"` in `path` means, or None."""
    for place in ("lib", path.parent, path.parts[0]):
        candidate = pathlib.Path(os.path.normpath(pathlib.Path(place) / name))
        if candidate.parts[0] in TOPS and (root / candidate).is_file():
            return candidate
    return None


def read_library(root):
    """Lines of each module, and the edges between folders: {(folder, folder)}."""
    lines, edges = {}, set()
    for path in sources(root):
        text = (root / path).read_text(encoding="utf-8")
        lines[module_of(path)] = lines.get(module_of(path), 0) + text.count("\n")
        for name in INCLUDE.findall(text):
            target = resolve(root, path, name)
            if target is None:
                continue
            if path.parts[0] == "lib" and target.parts[0] == "apps":
                raise Disorder(f"an arrow up: {path} includes {target}")
            if target.parent != path.parent:
                edges.add((path.parent, target.parent))
    if not lines:
        raise Disorder(f"{root} has no lib/ and no apps/")
    return lines, edges


def graph_of(edges, names):
    graph = {name: set() for name in names}
    for above, below in edges:
        if above != below:
            graph[above].add(below)
    return graph


def refuse_circles(graph):
    for circle in circles({node: sorted(graph[node]) for node in graph}):
        raise Disorder(f"a circle: {' -> '.join(map(str, circle))}")


def layers_of(graph):
    """{module: layer}, the lowest layer is 0."""
    layers = {}

    def layer(module):
        if module not in layers:
            layers[module] = max((layer(below) + 1 for below in graph[module]), default=0)
        return layers[module]

    for module in sorted(graph):
        layer(module)
    return layers


def reduced(graph):
    """The arrows that do not follow from others, sorted."""
    below = {}

    def all_below(module):
        if module not in below:
            below[module] = set().union(*({other} | all_below(other) for other in graph[module]))
        return below[module]

    return [(module, other) for module in sorted(graph) for other in sorted(graph[module])
            if not any(other in all_below(via) for via in graph[module])]


def plan_layers(root):
    """Lines, layers and arrows of the modules. Raises Disorder."""
    lines, edges = read_library(root)
    refuse_circles(graph_of(edges, {folder for edge in edges for folder in edge}))
    graph = graph_of({(module_of(above / "x"), module_of(below / "x")) for above, below in edges}, lines)
    refuse_circles(graph)
    layers = layers_of(graph)
    in_library = len(lines) - ("apps" in lines)
    if in_library > MAX_MODULES:
        raise Disorder(f"{in_library} modules in lib/; {MAX_MODULES} are allowed")
    if max(layers.values()) >= MAX_LAYERS:
        raise Disorder(f"{max(layers.values()) + 1} layers; {MAX_LAYERS} are allowed")
    return lines, layers, reduced(graph)


class Node:
    """A module, or the place where an arrow passes a layer."""

    def __init__(self, name, layer, width, module=True):
        self.name, self.layer, self.width, self.module = name, layer, width, module
        self.above, self.below = [], []  # nodes of the neighbouring layers
        self.x = 0.0  # of the middle

    def ends(self):
        return self.x - self.width / 2, self.x + self.width / 2


def width_of(lines):
    return max(LEAST_WIDTH, WIDTH_OF_STEP * max(1, round(lines / STEP)))


def chains_of(arrows, modules):
    """For each arrow its nodes from top to bottom, including those that it passes."""
    chains = []
    for above, below in arrows:
        chain = [modules[above]]
        for layer in range(modules[above].layer - 1, modules[below].layer, -1):
            chain.append(Node(f"{above} to {below}", layer, SHAFT, module=False))
        chain.append(modules[below])
        for upper, lower in itertools.pairwise(chain):
            upper.below.append(lower)
            lower.above.append(upper)
        chains.append(chain)
    return chains


def crossings(upper, lower):
    """The number of crossings of the arrows between two layers, in the given order."""
    place = {node: i for i, node in enumerate(lower)}
    ends = [(i, place[other]) for i, node in enumerate(upper) for other in node.below]
    return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in itertools.combinations(ends, 2))


def all_crossings(levels):
    return sum(crossings(upper, lower) for lower, upper in itertools.pairwise(levels))


def swap_to_better(levels):
    """Exchanges any two nodes of a layer as long as that makes fewer arrows cross."""
    best, better = all_crossings(levels), True
    while better:
        better = False
        for level in levels:
            for i, j in itertools.combinations(range(len(level)), 2):
                level[i], level[j] = level[j], level[i]
                count = all_crossings(levels)
                if count < best:
                    best, better = count, True
                else:
                    level[i], level[j] = level[j], level[i]


def order(levels):
    """Sorts each layer by the middle of its neighbours, from below and from above, and then by exchanges."""
    best, kept = None, None
    for sweep in range(12):
        upward = sweep % 2 == 0
        for level in levels if upward else levels[::-1]:
            place = {node: i / max(1, len(other) - 1) for other in levels for i, node in enumerate(other)}

            def middle(node, place=place, upward=upward):
                near = node.below if upward else node.above
                return sum(place[n] for n in near) / len(near) if near else place[node]

            level.sort(key=middle)
        swap_to_better(levels)
        count = all_crossings(levels)
        if best is None or count < best:
            best, kept = count, [list(level) for level in levels]
    levels[:] = kept


def push_apart(level, wanted):
    """Places a layer's nodes as near as possible to the wanted places, without overlaps (pool adjacent violators)."""
    blocks = []  # nodes that touch: sum of the wanted places of the first, count, nodes
    for node, x in zip(level, wanted):
        blocks.append([x, 1, [(node, 0.0)]])
        while len(blocks) > 1 and end_of(blocks[-2]) > start_of(blocks[-1]):
            total, count, nodes = blocks.pop()
            into = blocks[-1]
            last, offset = into[2][-1]
            shift = offset + (last.width + nodes[0][0].width) / 2 + gap_between(last, nodes[0][0])
            into[0] += total - shift * count
            into[1] += count
            into[2] += [(each, shift + moved) for each, moved in nodes]
    for total, count, nodes in blocks:
        for node, offset in nodes:
            node.x = total / count + offset


def gap_between(a, b):
    return GAP if a.module and b.module else GAP / 2


def start_of(block):
    return block[0] / block[1] - block[2][0][0].width / 2


def end_of(block):
    last, offset = block[2][-1]
    return block[0] / block[1] + offset + last.width / 2 + GAP


def place(levels):
    """Moves nodes to the middle of their neighbours, in turns from above and below."""
    for level in levels:
        push_apart(level, [0.0] * len(level))
    for turn in range(60):
        for level in levels if turn % 2 else levels[::-1]:
            wanted = []
            for node in level:
                near = node.above + node.below
                # Passing arrows weigh most, so that they become straight.
                weights = [1 if other.module and node.module else 3 for other in near]
                total = sum(weight * other.x for weight, other in zip(weights, near))
                # Modules are also drawn to the middle of the picture.
                wanted.append(total / (sum(weights) + (TO_THE_MIDDLE if node.module else 0)) if near else 0.0)
            push_apart(level, wanted)


def build_nodes(lines, layers, arrows):
    modules = {name: Node(name, layers[name], width_of(lines[name])) for name in sorted(lines)}
    chains = chains_of(arrows, modules)
    levels = [[] for _ in range(max(layers.values()) + 1)]
    for node in modules.values():
        levels[node.layer].append(node)
    for chain in chains:
        for node in chain[1:-1]:
            levels[node.layer].append(node)
    order(levels)
    place(levels)
    return modules, chains, levels


def ports(chains):
    """The places where each arrow leaves and meets its modules: {(id of the chain, is_start): x}, spread along the
    sides."""
    meet = {}
    for chain in chains:
        meet.setdefault((chain[0], True), []).append(chain)
        meet.setdefault((chain[-1], False), []).append(chain)
    found = {}
    for (node, is_start), members in meet.items():
        members.sort(key=lambda chain: (chain[1] if is_start else chain[-2]).x)
        left, right = node.ends()
        left, right = left + 14, right - 14
        for i, chain in enumerate(members):
            there = (chain[1] if is_start else chain[-2]).x
            even = left + (right - left) * (i + 1) / (len(members) + 1)
            # Arrows go straight down if there is module, without crossing others.
            low = left + (right - left) * i / len(members)
            high = left + (right - left) * (i + 1) / len(members)
            found[id(chain), is_start] = min(max(there, low), high) if low <= high else even
    return found


def path_of(chain, found, top_of):
    """An SVG path: curves between layers, straight lines past modules."""
    x, y = found[id(chain), True], top_of(chain[0].layer) + MODULE_HEIGHT
    parts = [f"M{x:.0f} {y:.0f}"]
    for node in chain[1:]:
        last = node is chain[-1]
        to_x = found[id(chain), False] if last else node.x
        to_y = top_of(node.layer) - (ARROW if last else 0)
        half = (to_y - y) / 2
        parts.append(f"C{x:.0f} {y + half:.0f} {to_x:.0f} {to_y - half:.0f} {to_x:.0f} {to_y:.0f}")
        x, y = to_x, to_y
        if not last:
            y += MODULE_HEIGHT
            parts.append(f"V{y:.0f}")
    return "".join(parts)


def lines_text(lines):
    steps = max(1, round(lines / STEP))
    return f"{steps * STEP / 1000:g} k lines"


def colour(hue, saturation, lightness):
    """A colour from degrees and percents, as #rrggbb."""
    parts = colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def style(count):
    """Colours by layer, for light and for dark pages."""
    def colours(saturation, lightness, edge):
        rules = []
        for layer in range(count):
            hue = 215 - 190 * layer / max(1, count - 1)
            rules.append(f".f{layer}{{fill:{colour(hue, saturation, lightness)};stroke:{colour(hue, saturation, edge)}}}")
        return "".join(rules)

    light = (".page{fill:#fff;stroke:#d0d7de}.band{fill:#f6f8fa}text{fill:#1f2328}.small{fill:#59636e}"
             ".arrow{stroke:#6e7781}.head{fill:#6e7781}" + colours(62, 90, 62))
    dark = (".page{fill:#0d1117;stroke:#30363d}.band{fill:#151b23}text{fill:#f0f6fc}.small{fill:#9198a1}"
            ".arrow{stroke:#8b949e}.head{fill:#8b949e}" + colours(34, 24, 46))
    return ("text{font:600 15px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;text-anchor:middle}"
            ".small{font-weight:400;font-size:12px}.title{font-size:19px}.left{text-anchor:start}"
            ".module{stroke-width:1.5}.arrow{fill:none;stroke-width:1.5}"
            f"{light}@media(prefers-color-scheme:dark){{{dark}}}")


def draw(lines, layers, arrows):
    """The picture, as text."""
    modules, chains, levels = build_nodes(lines, layers, arrows)
    left = min(node.ends()[0] for level in levels for node in level)
    right = max(node.ends()[1] for level in levels for node in level)
    for level in levels:
        for node in level:
            node.x = round(node.x - left + MARGIN + NUMBERS)
    width = round(right - left + 2 * MARGIN + NUMBERS)
    count = len(levels)
    height = TITLE + count * LAYER_HEIGHT + LEGEND

    def top_of(layer):
        return TITLE + (count - 1 - layer) * LAYER_HEIGHT + (LAYER_HEIGHT - MODULE_HEIGHT) / 2

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'role="img" aria-label="Modules of the library in their layers, with arrows to what they include">',
           f"<style>{style(count)}</style>",
           f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="12"/>',
           f'<text class="title left" x="{MARGIN}" y="36">dsckpt, layer by layer</text>',
           f'<text class="small left" x="{MARGIN}" y="57">{len(modules)} modules, {len(arrows)} arrows</text>']
    for layer in range(count):
        band = TITLE + (count - 1 - layer) * LAYER_HEIGHT
        if layer % 2 == 0:
            out.append(f'<rect class="band" x="1" y="{band}" width="{width - 2}" height="{LAYER_HEIGHT}"/>')
        out.append(f'<text class="small" x="{MARGIN}" y="{band + LAYER_HEIGHT / 2 + 4:.0f}">{layer}</text>')
    found = ports(chains)
    for chain in chains:
        x, y = found[id(chain), False], top_of(chain[-1].layer)
        out.append(f'<path class="arrow" d="{path_of(chain, found, top_of)}"/>')
        out.append(f'<path class="head" d="M{x:.0f} {y:.0f}l-4.5 -{ARROW + 1}h9z"/>')
    for name, node in modules.items():
        y = top_of(node.layer)
        out.append(f'<rect class="module f{node.layer}" x="{node.x - node.width / 2:.0f}" y="{y:.0f}" '
                   f'width="{node.width}" height="{MODULE_HEIGHT}" rx="{CORNER}"/>')
        out.append(f'<text x="{node.x:.0f}" y="{y + 22:.0f}">{name}</text>')
        out.append(f'<text class="small" x="{node.x:.0f}" y="{y + 39:.0f}">{lines_text(lines[name])}</text>')
    out.append(f'<text class="small left" x="{MARGIN}" y="{height - 18}">A module includes what its arrows lead to, and '
               "all that is reached from there. It is as wide as it has lines.</text>")
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the picture is not current")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the project's folder")
    options = parser.parse_args()
    try:
        text = draw(*plan_layers(options.root))
    except Disorder as error:
        sys.exit(f"draw_layers.py: {error}")
    path = options.root / PICTURE
    if not options.check:
        path.write_text(text, encoding="utf-8")
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"draw_layers.py: {PICTURE} is not current: run scripts/draw_layers.py")


if __name__ == "__main__":
    main()
