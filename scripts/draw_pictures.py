#!/usr/bin/env python3
"""Draws README's pictures into .github/pictures, from the tools' output and the benchmark's results.

    scripts/draw_pictures.py            writes all of them; needs the tools, pyte and chromium
    scripts/draw_pictures.py --check    exits 1, and names the pictures that are not current

* `run.svg`, `inspect.svg`: a terminal after commands on a checkpoint of testdata, and on a sparse one with the shapes
  of Llama's 8 B parameters.
* `speed.svg`: tests/bench/runs/SPEED/results.json as bars.
* `paths.svg`: the tool for each conversion.
* `page.png`: the page that `ckpt-inspect --html` writes, from its bytes to its model.

DSCKPT_BIN is the folder of the tools; default: build/release/bin. Seconds in the output are not compared.
"""
import argparse
import fcntl
import hashlib
import html
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ROOT / ".github" / "pictures"
BIN = pathlib.Path(os.environ.get("DSCKPT_BIN", ROOT / "build" / "release" / "bin"))
SPEED = "2026-11-cp-speed"
MOST_BYTES = 300_000  # all pictures together
SECONDS = re.compile(r"\d+\.\d\d s\b")

# Light and dark colours, like GitHub's pages.
STYLE = """
.page{fill:#ffffff}.edge{fill:none;stroke:#d0d7de}.bar{fill:#f6f8fa}.text{fill:#1f2328}.faint{fill:#656d76}
.yellow{fill:#9a6700}.red{fill:#cf222e}.green{fill:#1a7f37}.blue{fill:#0969da}.magenta{fill:#8250df}.cyan{fill:#1b7c83}
.ours{fill:#0969da}.copy{fill:#8c959f}.theirs{fill:#d4a72c}.line{stroke:#656d76;fill:none}.head{fill:#656d76}
@media (prefers-color-scheme:dark){
.page{fill:#0d1117}.edge{stroke:#30363d}.bar{fill:#161b22}.text{fill:#e6edf3}.faint{fill:#8d96a0}
.yellow{fill:#d29922}.red{fill:#ff7b72}.green{fill:#3fb950}.blue{fill:#58a6ff}.magenta{fill:#bc8cff}.cyan{fill:#39c5cf}
.ours{fill:#58a6ff}.copy{fill:#6e7681}.theirs{fill:#bb8009}.line{stroke:#8d96a0}.head{fill:#8d96a0}}
"""
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace"
SANS = "-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"


def svg(width, height, title, body):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{html.escape(title)}">',
        f"<title>{html.escape(title)}</title>", f"<style>{STYLE}</style>", *body, "</svg>", ""])


# A terminal.

CELL, LINE_HEIGHT, PADDING, TITLE_BAR = 8.4, 19, 16, 34


def run_in_terminal(words, columns, folder):
    """The output of a command on a terminal, as bytes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, columns, 0, 0))
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    environment = {**kept, "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "xterm-256color", "HOME": str(folder)}
    child = subprocess.Popen(words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            break
        said += part
    os.close(ours)
    if child.wait() != 0:
        raise SystemExit(f"{' '.join(words)}: exit status {child.returncode}\n{said.decode()}")
    return said


def screen_of(commands, columns, folder):
    """Rows of (text, class, is bold)."""
    import pyte
    rows = []
    for command in commands:
        if rows:
            rows.append([])
        rows.append([("$ ", "green", True), (command, "text", True)])
        screen = pyte.Screen(columns, 200)
        pyte.ByteStream(screen).feed(run_in_terminal(command.split(), columns, folder))
        for y in range(screen.cursor.y):
            row, cells = [], [screen.buffer[y][x] for x in range(columns)]
            for cell in cells:
                colour = {"brown": "yellow"}.get(cell.fg, cell.fg)
                kind = (colour if colour in ("yellow", "red", "green", "blue", "magenta", "cyan") else "text", cell.bold)
                if row and row[-1][1:] == kind:
                    row[-1] = (row[-1][0] + cell.data, *kind)
                else:
                    row.append((cell.data, *kind))
            row[-1] = (row[-1][0].rstrip(), *row[-1][1:])
            rows.append(row if any(text for text, *_ in row) else [])
    return rows


def terminal(title, columns, commands, folder):
    """A picture of the terminal after these commands."""
    rows = screen_of(commands, columns, folder)
    width = round(columns * CELL + 2 * PADDING)
    height = TITLE_BAR + len(rows) * LINE_HEIGHT + 2 * PADDING
    body = [f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
            f'<path class="bar" d="M0 {TITLE_BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{TITLE_BAR}z"/>',
            f'<rect class="edge" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *(f'<circle cx="{20 + 20 * number}" cy="17" r="6" fill="{colour}"/>'
              for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))),
            f'<text class="faint" x="{width // 2}" y="22" text-anchor="middle" font-family="{SANS}" font-size="13">'
            f"{html.escape(title)}</text>",
            f'<g font-family="{MONO}" font-size="14">']
    for number, row in enumerate(rows):
        y, column = TITLE_BAR + PADDING + number * LINE_HEIGHT + 14, 0
        for text, colour, is_bold in row:
            weight = ' font-weight="600"' if is_bold else ""
            for words in re.finditer(r"\S+(?: \S+)*", text):  # browsers merge several spaces
                x, length = PADDING + (column + words.start()) * CELL, len(words[0]) * CELL
                body.append(f'<text class="{colour}" x="{x:.1f}" y="{y}" textLength="{length:.1f}"{weight}>'
                            f"{html.escape(words[0])}</text>")
            column += len(text)
    return svg(width, height, title, [*body, "</g>"])


def trained(folder):
    """A checkpoint of the Trainer with three ranks of ZeRO-1."""
    shutil.copytree(ROOT / "testdata/checkpoints/hf_trainer_llama_z1_bf16_w3/ckpt/checkpoint-3", folder / "checkpoint-3")


def simulated(folder):
    modules = ":".join(str(ROOT / path) for path in ("testdata/makers", "tests/support"))
    subprocess.run([sys.executable, ROOT / "tests/simulate/simulate.py", "write", "--model", "llama-8b", "--stage", "3",
                    "--dp", "8", folder / "checkpoint-1000"], check=True, capture_output=True,
                   env={**os.environ, "PYTHONPATH": modules})


def draw_run(folder):
    trained(folder)
    return terminal("a training of three GPUs", 120, [
        "ckpt-inspect verify checkpoint-3", "zero-to-fp32 checkpoint-3 weights --safe-serialization",
        "reshard checkpoint-3 on-8-gpus --dp 8"], folder)


def draw_inspect(folder):
    simulated(folder)
    return terminal("Llama, 8 B parameters, eight GPUs", 88, ["ckpt-inspect checkpoint-1000"], folder)


# Bars.

# The rows of the results, with their titles in the picture.
BARS = (("warm-weights-bin-float32-400M-stage2", "weights of 400 M, stage 2"),
        ("warm-weights-bin-float32-400M-stage3", "weights of 400 M, stage 3"),
        ("warm-universal-100M-stage2", "universal of 100 M, stage 2"),
        ("warm-universal-100M-stage3", "universal of 100 M, stage 3"))


def draw_speed(_):
    results = json.loads((ROOT / "tests/bench/runs" / SPEED / "results.json").read_text())
    by_name = {row["name"]: row for row in results["rows"]}
    left, step, top = 220, 74, 66
    rows = [(title, seconds_of(by_name[name])) for name, title in BARS]
    scale = 440 / max(seconds["theirs"] for _, seconds in rows)
    height = top + step * len(rows) + 14
    body = [f'<rect class="page" width="760" height="{height}" rx="8"/>', f'<g font-family="{SANS}" font-size="13">',
            '<text class="text" x="16" y="26" font-size="15" font-weight="600">Seconds, four ranks, bf16, from the '
            "page cache, 2 cores</text>"]
    for at, (kind, label) in enumerate((("ours", "dsckpt"), ("copy", "cp -r of the result"),
                                        ("theirs", "DeepSpeed's script"))):
        x = 16 + (0, 90, 240)[at]
        body += [f'<rect class="{kind}" x="{x}" y="38" width="11" height="11" rx="2"/>',
                 f'<text class="faint" x="{x + 17}" y="48">{label}</text>']
    for at, (title, seconds) in enumerate(rows):
        y = top + at * step
        body.append(f'<text class="text" x="{left - 12}" y="{y + 32}" text-anchor="end">{title}</text>')
        for number, kind in enumerate(("ours", "copy", "theirs")):
            width = max(seconds[kind] * scale, 2)
            body += [f'<rect class="{kind}" x="{left}" y="{y + 3 + 19 * number}" width="{width:.1f}" height="15" rx="2"/>',
                     f'<text class="faint" x="{left + width + 7:.1f}" y="{y + 15 + 19 * number}" font-size="12">'
                     f"{seconds[kind]:.2f}</text>"]
    return svg(760, height, "Seconds of dsckpt, of cp and of DeepSpeed's scripts", [*body, "</g>"])


def seconds_of(row):
    """Medians of a row: ours, the copy's, and the one of DeepSpeed's script."""
    return {kind: row["programs"][program]["median_seconds"] for kind, program in
            (("ours", row["program"]), ("copy", row["baseline"]), ("theirs", "deepspeed"))}


# The conversions.

# From left to right: formats of inputs and outputs as (name, description, row), then (tool, from, to).
HAVE = (("ZeRO shards", "stages 0 to 3, DeepSpeed"), ("universal checkpoint", "DeepSpeed"),
        ("DCP", "FSDP2, Accelerate, verl"), ("a single GPU's, DDP's", "Trainer, Accelerate, Lightning"),
        ("weights", "Hugging Face, PEFT adapters"))
WANT = (("weights", "transformers, vLLM, torch", "zero-to-fp32"),
        ("adapter, merged model", "PEFT", "zero-to-fp32"),
        ("shards for any GPUs, any stage", "DeepSpeed", "reshard"),
        ("universal checkpoint", "DeepSpeed, any mesh", "to-universal"),
        ("DCP", "FSDP2, Trainer, Accelerate", "to-dcp"),
        ("a running engine", "dsckpt.load_checkpoint", "Python"))


def box(x, y, width, name, what):
    return [f'<rect class="bar" x="{x}" y="{y}" width="{width}" height="44" rx="6"/>',
            f'<rect class="edge" x="{x}" y="{y}" width="{width}" height="44" rx="6"/>',
            f'<text class="text" x="{x + 12}" y="{y + 19}" font-weight="600">{html.escape(name)}</text>',
            f'<text class="faint" x="{x + 12}" y="{y + 35}" font-size="12">{html.escape(what)}</text>']


def draw_paths(_):
    step, top, height = 56, 44, 44 + 56 * len(WANT) + 8
    first = top + (len(WANT) - len(HAVE)) * step / 2
    middle = top + len(WANT) * step / 2 - 6
    body = [f'<rect class="page" width="760" height="{height}" rx="8"/>', f'<g font-family="{SANS}" font-size="13">',
            '<text class="faint" x="16" y="28">you have</text>', '<text class="faint" x="480" y="28">you get</text>']
    for at, (name, what) in enumerate(HAVE):
        y = first + at * step
        body += [f'<path class="line" d="M226 {y + 22}C268 {y + 22} 258 {middle} 300 {middle}"/>',
                 *box(16, y, 210, name, what)]
    for at, (name, what, tool) in enumerate(WANT):
        y = top + at * step
        body += [f'<path class="line" d="M330 {middle}C372 {middle} 352 {y + 22} 372 {y + 22}H474"/>',
                 f'<path class="head" d="M472 {y + 18}l8 4l-8 4z"/>',
                 f'<text class="blue" x="374" y="{y + 17}" font-size="12" font-family="{MONO}">{tool}</text>',
                 *box(480, y, 264, name, what)]
    body += [f'<rect class="ours" x="286" y="{middle - 14}" width="58" height="28" rx="14"/>',
             f'<text class="page" x="315" y="{middle + 5}" text-anchor="middle" font-weight="600">dsckpt</text>']
    return svg(760, height, "What dsckpt turns into what", [*body, "</g>"])


# The page.

PART_OF_PAGE = "#facts{display:none}"
PAGE_OF = b"page\0"  # the keyword of the chunk with the page's SHA-256


def draw_page(folder):
    simulated(folder)
    subprocess.run([BIN / "ckpt-inspect", "checkpoint-1000", "--html", "page.html"], cwd=folder, check=True,
                   capture_output=True)
    page = (folder / "page.html").read_text()
    (folder / "page.html").write_text(page.replace("</style>", f"{PART_OF_PAGE}</style>", 1))
    browser = next((found for name in ("chromium-headless-shell", "chromium", "google-chrome")
                    if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("a browser is needed: chromium-headless-shell")
    subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    f"--user-data-dir={folder}/profile", "--window-size=1000,1755", "--force-device-scale-factor=0.7",
                    "--blink-settings=preferredColorScheme=1", f"--screenshot={folder}/page.png",
                    f"file://{folder}/page.html"], check=True, capture_output=True, timeout=120)
    picture = (folder / "page.png").read_bytes()
    end = picture.rindex(b"IEND") - 4
    return picture[:end] + chunk(b"tEXt", PAGE_OF + hashlib.sha256(page.encode()).hexdigest().encode()) + picture[end:]


def chunk(kind, data):
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def page_of(picture):
    begin = picture.find(b"tEXt" + PAGE_OF)
    return picture[begin:begin + 4 + len(PAGE_OF) + 64] if begin >= 0 else None


DRAWN = {"run.svg": draw_run, "inspect.svg": draw_inspect, "speed.svg": draw_speed, "paths.svg": draw_paths,
         "page.png": draw_page}


def is_current(name, drawn, kept):
    """Browsers draw differently with other fonts, so the hash of the drawn page is compared."""
    if name.endswith(".png"):
        return page_of(drawn) == page_of(kept)
    return SECONDS.sub("", drawn) == SECONDS.sub("", kept.decode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if one is not current")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    old = []
    for name, draw in DRAWN.items():
        kept = PICTURES / name
        with tempfile.TemporaryDirectory(prefix="dsckpt-pictures-") as folder:
            drawn = draw(pathlib.Path(folder))
        if kept.exists() and is_current(name, drawn, kept.read_bytes()):
            continue
        if options.check:
            old.append(name)
        elif isinstance(drawn, bytes):
            kept.write_bytes(drawn)
        else:
            kept.write_text(drawn)
    size = sum(path.stat().st_size for path in PICTURES.iterdir())
    if size > MOST_BYTES:
        raise SystemExit(f"all pictures have {size:,} bytes, of {MOST_BYTES:,}")
    unknown = sorted({path.name for path in PICTURES.iterdir()} - set(DRAWN))
    if unknown:
        raise SystemExit(f"nothing draws {', '.join(unknown)}")
    if old:
        raise SystemExit(f"not what would be drawn: {', '.join(old)}; scripts/draw_pictures.py draws it")


if __name__ == "__main__":
    main()
