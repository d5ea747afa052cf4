"""The view of a Checkpoint in a notebook: its tensors as a tree of modules that open."""
import html
import os

from ._arrays import bytes_text

_MOST_ROWS = 400  # of one module


def html_of(checkpoint, said):
    """said: facts about the checkpoint, a list of texts."""
    root = {}
    for name, tensor in checkpoint.items():
        *modules, last = name.split(".")
        node = root
        for module in modules:
            node = node.setdefault(module, {})
            if not isinstance(node, dict):  # a tensor with the name of a module
                break
        if isinstance(node, dict) and not isinstance(node.get(last), dict):
            node[last] = tensor
    path = html.escape(os.fsdecode(checkpoint.path))
    known = html.escape(", ".join(said))
    return f"<div><b>{path}</b><br>{known}<ul style='list-style: none'>{_rows(root)}</ul></div>"


def _rows(module):
    rows = [_row(label, node) for label, node in _folded(module)]
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS:] = [f"<li>and {len(rows) - _MOST_ROWS} more</li>"]
    return "".join(rows)


def _row(label, node):
    label = html.escape(label)
    if not isinstance(node, dict):
        what = f"= {node.alias_of}" if node.alias_of else f"{node.dtype} {list(node.shape)} {bytes_text(node.nbytes)}"
        return f"<li><code>{label}</code> {html.escape(what)}</li>"
    tensors, size = _sums(node)
    summary = f"<code>{label}</code> {tensors} tensor{'s' * (tensors != 1)}, {bytes_text(size)}"
    return f"<li><details><summary>{summary}</summary><ul style='list-style: none'>{_rows(node)}</ul></details></li>"


def _folded(module):
    """(label, node) of each part. Consecutive numbered parts that are alike become one: "[0-27]"."""
    runs = []  # [first, last, form, node]
    for label, node in module.items():
        form = _form(node)
        is_next = runs and label.isdecimal() and runs[-1][1].isdecimal() and int(label) == int(runs[-1][1]) + 1
        if is_next and runs[-1][2] == form:
            runs[-1][1] = label
        else:
            runs.append([label, label, form, node])
    return [(first if first == last else f"[{first}-{last}]", node) for first, last, _, node in runs]


def _form(node):
    """A value that is equal for modules that are alike."""
    if not isinstance(node, dict):
        return node.dtype, node.shape, bool(node.alias_of)
    return tuple((label, _form(part)) for label, part in node.items())


def _sums(node):
    """The number of tensors, and the bytes of those that are not aliases."""
    if not isinstance(node, dict):
        return 1, 0 if node.alias_of else node.nbytes
    parts = [_sums(part) for part in node.values()]
    return sum(tensors for tensors, _ in parts), sum(size for _, size in parts)
