#!/usr/bin/env python3
"""Draws lib/floors.svg: the rooms of the library and the tools, and who includes whom.

    scripts/draw_floors.py            writes lib/floors.svg
    scripts/draw_floors.py --check    exits 1, and says why, if the house is not in order or lib/floors.svg is
                                      not what would be written

A room is a folder of lib/ with all that is below it; apps/ is one room. A room stands one floor above the
highest room that it includes. An arrow is an include; those that follow from others are not drawn. A room is as
wide as it has lines, in steps of 500, so that not every change of a line changes the picture.

The house is in order if no rooms, and no folders of a room, include each other in a circle, nothing in lib/
includes apps/, and lib/ has at most 21 rooms, all on at most 10 floors.

The same sources always give the same bytes.
"""
import argparse
import colorsys
import itertools
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = pathlib.Path("lib/floors.svg")
TOPS = ("lib", "apps")
MAX_ROOMS = 22  # of the library
MAX_FLOORS = 10
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)

# The drawing, in pixels.
STEP = 500  # lines
WIDTH_OF_STEP = 30
LEAST_WIDTH = 104
ROOM_HEIGHT = 50
FLOOR_HEIGHT = 100
SHAFT = 22  # the width that a passing arrow takes on a floor
GAP = 22
MARGIN = 28
NUMBERS = 44  # the column of floor numbers
TITLE = 74
LEGEND = 46
CORNER = 8
ARROW = 7
TO_THE_MIDDLE = 0.6  # as strong as so many arrows


class Disorder(Exception):
    """What is wrong with the house, for the user."""


def sources(root):
    """Relative paths of all C++ files, sorted."""
    for top in TOPS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                yield path.relative_to(root)


def room_of(path):
    """'inspect' for lib/inspect/verify/verify.h."""
    return path.parts[1] if path.parts[0] == "lib" else "apps"


def resolve(root, path, name):
    """The project's file that `#include "name"` in `path` means, or None."""
    for place in ("lib", path.parent, path.parts[0]):
        candidate = pathlib.Path(os.path.normpath(pathlib.Path(place) / name))
        if candidate.parts[0] in TOPS and (root / candidate).is_file():
            return candidate
    return None


def read_house(root):
    """Lines of each room, and the edges between folders: {(folder, folder)}."""
    lines, edges = {}, set()
    for path in sources(root):
        text = (root / path).read_text(encoding="utf-8")
        lines[room_of(path)] = lines.get(room_of(path), 0) + text.count("\n")
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
    done = set()

    def visit(node, trail):
        if node in trail:
            circle = [*trail[trail.index(node):], node]
            raise Disorder(f"a circle: {' -> '.join(map(str, circle))}")
        if node in done:
            return
        for other in sorted(graph[node]):
            visit(other, [*trail, node])
        done.add(node)

    for node in sorted(graph):
        visit(node, [])


def floors_of(graph):
    """{room: floor}, the ground floor is 0."""
    floors = {}

    def floor(room):
        if room not in floors:
            floors[room] = max((floor(below) + 1 for below in graph[room]), default=0)
        return floors[room]

    for room in sorted(graph):
        floor(room)
    return floors


def reduced(graph):
    """The arrows that do not follow from others, sorted."""
    below = {}

    def all_below(room):
        if room not in below:
            below[room] = set().union(*({other} | all_below(other) for other in graph[room]))
        return below[room]

    return [(room, other) for room in sorted(graph) for other in sorted(graph[room])
            if not any(other in all_below(via) for via in graph[room])]


def plan_house(root):
    """Lines, floors and arrows of the rooms. Throws Disorder."""
    lines, edges = read_house(root)
    refuse_circles(graph_of(edges, {folder for edge in edges for folder in edge}))
    graph = graph_of({(room_of(above / "x"), room_of(below / "x")) for above, below in edges}, lines)
    refuse_circles(graph)
    floors = floors_of(graph)
    in_library = len(lines) - ("apps" in lines)
    if in_library > MAX_ROOMS:
        raise Disorder(f"{in_library} rooms in lib/; {MAX_ROOMS} are allowed")
    if max(floors.values()) >= MAX_FLOORS:
        raise Disorder(f"{max(floors.values()) + 1} floors; {MAX_FLOORS} are allowed")
    return lines, floors, reduced(graph)


class Node:
    """A room, or the place where an arrow passes a floor."""

    def __init__(self, name, floor, width, room=True):
        self.name, self.floor, self.width, self.room = name, floor, width, room
        self.above, self.below = [], []  # nodes of the next floors
        self.x = 0.0  # of the middle

    def ends(self):
        return self.x - self.width / 2, self.x + self.width / 2


def width_of(lines):
    return max(LEAST_WIDTH, WIDTH_OF_STEP * max(1, round(lines / STEP)))


def chains_of(arrows, rooms):
    """For each arrow its nodes from top to bottom, those that it passes included."""
    chains = []
    for above, below in arrows:
        chain = [rooms[above]]
        for floor in range(rooms[above].floor - 1, rooms[below].floor, -1):
            chain.append(Node(f"{above} to {below}", floor, SHAFT, room=False))
        chain.append(rooms[below])
        for upper, lower in itertools.pairwise(chain):
            upper.below.append(lower)
            lower.above.append(upper)
        chains.append(chain)
    return chains


def crossings(upper, lower):
    """How often the arrows between two floors, as they are ordered, cross."""
    place = {node: i for i, node in enumerate(lower)}
    ends = [(i, place[other]) for i, node in enumerate(upper) for other in node.below]
    return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in itertools.combinations(ends, 2))


def all_crossings(levels):
    return sum(crossings(upper, lower) for lower, upper in itertools.pairwise(levels))


def swap_to_better(levels):
    """Exchanges any two nodes of a floor for as long as fewer arrows cross."""
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
    """Sorts each floor by the middle of the neighbours, from below and from above, then by exchanges."""
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
    """Gives a floor's nodes the places nearest to those wanted at which none overlap (pool adjacent violators)."""
    blocks = []  # of nodes that touch: sum of what each wants of the first's place, count, nodes
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
    return GAP if a.room and b.room else GAP / 2


def start_of(block):
    return block[0] / block[1] - block[2][0][0].width / 2


def end_of(block):
    last, offset = block[2][-1]
    return block[0] / block[1] + offset + last.width / 2 + GAP


def place(levels):
    """Moves nodes to the middle of what they are tied to, in turns from above and below."""
    for level in levels:
        push_apart(level, [0.0] * len(level))
    for turn in range(60):
        for level in levels if turn % 2 else levels[::-1]:
            wanted = []
            for node in level:
                near = node.above + node.below
                # Passing arrows pull most: they are to be straight.
                weights = [1 if other.room and node.room else 3 for other in near]
                total = sum(weight * other.x for weight, other in zip(weights, near))
                # Rooms are also drawn to the middle of the house.
                wanted.append(total / (sum(weights) + (TO_THE_MIDDLE if node.room else 0)) if near else 0.0)
            push_apart(level, wanted)


def build_nodes(lines, floors, arrows):
    rooms = {name: Node(name, floors[name], width_of(lines[name])) for name in sorted(lines)}
    chains = chains_of(arrows, rooms)
    levels = [[] for _ in range(max(floors.values()) + 1)]
    for node in rooms.values():
        levels[node.floor].append(node)
    for chain in chains:
        for node in chain[1:-1]:
            levels[node.floor].append(node)
    order(levels)
    place(levels)
    return rooms, chains, levels


def ports(chains):
    """Where each arrow leaves and meets its rooms: {(id of the chain, is_start): x}. Spread along the room's side."""
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
            # Straight down where there is room for it, yet in order.
            low = left + (right - left) * i / len(members)
            high = left + (right - left) * (i + 1) / len(members)
            found[id(chain), is_start] = min(max(there, low), high) if low <= high else even
    return found


def path_of(chain, found, top_of):
    """An SVG path: curves between floors, straight lines past rooms."""
    x, y = found[id(chain), True], top_of(chain[0].floor) + ROOM_HEIGHT
    parts = [f"M{x:.0f} {y:.0f}"]
    for node in chain[1:]:
        last = node is chain[-1]
        to_x = found[id(chain), False] if last else node.x
        to_y = top_of(node.floor) - (ARROW if last else 0)
        half = (to_y - y) / 2
        parts.append(f"C{x:.0f} {y + half:.0f} {to_x:.0f} {to_y - half:.0f} {to_x:.0f} {to_y:.0f}")
        x, y = to_x, to_y
        if not last:
            y += ROOM_HEIGHT
            parts.append(f"V{y:.0f}")
    return "".join(parts)


def lines_text(lines):
    steps = max(1, round(lines / STEP))
    return f"{steps * STEP / 1000:g} k lines"


def colour(hue, saturation, lightness):
    """Of degrees and percents, as #rrggbb."""
    parts = colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def style(count):
    """Colours by floor, from stone to roof; twice, for light and for dark."""
    def colours(saturation, lightness, edge):
        rules = []
        for floor in range(count):
            hue = 215 - 190 * floor / max(1, count - 1)
            rules.append(f".f{floor}{{fill:{colour(hue, saturation, lightness)};stroke:{colour(hue, saturation, edge)}}}")
        return "".join(rules)

    light = (".page{fill:#fff;stroke:#d0d7de}.band{fill:#f6f8fa}text{fill:#1f2328}.small{fill:#59636e}"
             ".arrow{stroke:#6e7781}.head{fill:#6e7781}" + colours(62, 90, 62))
    dark = (".page{fill:#0d1117;stroke:#30363d}.band{fill:#151b23}text{fill:#f0f6fc}.small{fill:#9198a1}"
            ".arrow{stroke:#8b949e}.head{fill:#8b949e}" + colours(34, 24, 46))
    return ("text{font:600 15px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;text-anchor:middle}"
            ".small{font-weight:400;font-size:12px}.title{font-size:19px}.left{text-anchor:start}"
            ".room{stroke-width:1.5}.arrow{fill:none;stroke-width:1.5}"
            f"{light}@media(prefers-color-scheme:dark){{{dark}}}")


def draw(lines, floors, arrows):
    """The picture, as text."""
    rooms, chains, levels = build_nodes(lines, floors, arrows)
    left = min(node.ends()[0] for level in levels for node in level)
    right = max(node.ends()[1] for level in levels for node in level)
    for level in levels:
        for node in level:
            node.x = round(node.x - left + MARGIN + NUMBERS)
    width = round(right - left + 2 * MARGIN + NUMBERS)
    count = len(levels)
    height = TITLE + count * FLOOR_HEIGHT + LEGEND

    def top_of(floor):
        return TITLE + (count - 1 - floor) * FLOOR_HEIGHT + (FLOOR_HEIGHT - ROOM_HEIGHT) / 2

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'role="img" aria-label="Rooms of the library on their floors, with arrows to what they include">',
           f"<style>{style(count)}</style>",
           f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="12"/>',
           f'<text class="title left" x="{MARGIN}" y="36">dsckpt, floor by floor</text>',
           f'<text class="small left" x="{MARGIN}" y="57">{len(rooms)} rooms, {len(arrows)} arrows</text>']
    for floor in range(count):
        band = TITLE + (count - 1 - floor) * FLOOR_HEIGHT
        if floor % 2 == 0:
            out.append(f'<rect class="band" x="1" y="{band}" width="{width - 2}" height="{FLOOR_HEIGHT}"/>')
        out.append(f'<text class="small" x="{MARGIN}" y="{band + FLOOR_HEIGHT / 2 + 4:.0f}">{floor}</text>')
    found = ports(chains)
    for chain in chains:
        x, y = found[id(chain), False], top_of(chain[-1].floor)
        out.append(f'<path class="arrow" d="{path_of(chain, found, top_of)}"/>')
        out.append(f'<path class="head" d="M{x:.0f} {y:.0f}l-4.5 -{ARROW + 1}h9z"/>')
    for name, node in rooms.items():
        y = top_of(node.floor)
        out.append(f'<rect class="room f{node.floor}" x="{node.x - node.width / 2:.0f}" y="{y:.0f}" '
                   f'width="{node.width}" height="{ROOM_HEIGHT}" rx="{CORNER}"/>')
        out.append(f'<text x="{node.x:.0f}" y="{y + 22:.0f}">{name}</text>')
        out.append(f'<text class="small" x="{node.x:.0f}" y="{y + 39:.0f}">{lines_text(lines[name])}</text>')
    out.append(f'<text class="small left" x="{MARGIN}" y="{height - 18}">A room includes what its arrows lead to, and '
               "all that is reached from there. It is as wide as it has lines.</text>")
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the picture is not current")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the project's folder")
    options = parser.parse_args()
    try:
        text = draw(*plan_house(options.root))
    except Disorder as error:
        sys.exit(f"draw_floors.py: {error}")
    path = options.root / PICTURE
    if not options.check:
        path.write_text(text, encoding="utf-8")
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"draw_floors.py: {PICTURE} is not current: run scripts/draw_floors.py")


if __name__ == "__main__":
    main()
