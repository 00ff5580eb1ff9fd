"""Imports of emitted files: those that the text below them uses, and no others.

In: the text of a file below its imports, what may be imported for it. Out: the lines of the imports. It is asked of the syntax tree, so what a docstring or a comment names is no use.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence


def print_used(text: str, modules: Mapping[str, Sequence[str]]) -> list[str]:
    """The lines `from module import names` for what a text uses.

    Args:
        text: of the file below its imports.
        modules: module -> the names that it may be asked for, in the order in which they are printed; of a module without any the module itself may be used.
    """
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    lines = []
    for module, names in modules.items():
        found = [name for name in names if name in used]
        if found:
            lines.append(f"from {module} import {', '.join(found)}")
        elif not names and module in used:
            lines += [*([""] if lines else []), f"import {module}"]
    return lines
