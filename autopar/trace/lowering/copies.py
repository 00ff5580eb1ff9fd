"""Copies: the lowered update of one parameter, written again for every parameter that is like it (`alike` has checked that they are).

In: a draft whose update nodes were lowered for the traced parameters only. Out: the same draft with the updates of all parameters. While
the update is lowered, the gradient of a parameter that has copies is a blank, so that its nodes depend on nothing before the update.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.tensor import Kind
from .draft import Draft, DraftNode, Val, node_inputs


class UpdateCopier:
    """Lives from before the update is lowered until after it.

    Args:
        copies: parameter -> the traced parameter whose update it repeats.
        inputs: values that enter, by storage.
        grads: gradients by parameter.
    """

    def __init__(self, copies: Mapping[str, str], inputs: Mapping[str, Val], grads: Mapping[str, Val]) -> None:
        self._inputs, self._grads = inputs, grads
        self._followers: dict[str, list[str]] = {}
        for name, traced in copies.items():
            self._followers.setdefault(traced, []).append(name)
        self.blanks = {n: Val(grads[n].shape, grads[n].dtype) for n in self._followers}
        self._storages: dict[str, list[str]] = {}  # of each parameter: itself and its states, parameters in the model's order
        for storage, value in inputs.items():
            if value.kind in (Kind.PARAM, Kind.OPTIM):
                self._storages.setdefault(storage.rpartition(":")[2], []).append(storage)

    def copy(self, draft: Draft, begin: int, updates: dict[str, Val]) -> dict[str, Val]:
        """Write the copies, and put the real gradients in.

        Args:
            begin: the update's first node.
            updates: final values by storage, of the traced parameters.

        Returns:
            Final values of all states, in the order of `inputs`.
        """
        if not self._followers:
            return updates
        shared, own = self._owned_nodes(draft.nodes[begin:])
        found = dict(updates)
        for traced, names in self._followers.items():
            for name in names:
                known = {id(self.blanks[traced]): self._grads[name]}
                renamed = {s: s.removesuffix(traced) + name for s in self._storages[traced]}
                known.update((id(self._inputs[s]), self._inputs[r]) for s, r in renamed.items())
                own[name] = [_repeat(node, known) for node in own[traced]]
                for storage, copied in renamed.items():
                    if storage in updates:
                        found[copied] = known.get(id(updates[storage]), updates[storage])
        for traced in self._followers:
            real = {id(self.blanks[traced]): self._grads[traced]}
            for node in own[traced]:
                node.args = tuple((key, _swap(value, real)) for key, value in node.args)
            for storage in self._storages[traced]:
                if storage in found:
                    found[storage] = real.get(id(found[storage]), found[storage])
        draft.nodes[begin:] = [*shared, *(node for name in self._storages for node in own[name])]
        return {s: found[s] for s in self._inputs if s in found}

    def _owned_nodes(self, nodes: list[DraftNode]) -> tuple[list[DraftNode], dict[str, list[DraftNode]]]:
        """The nodes that depend on no parameter, and for each parameter those that depend on it, its gradient or its states."""
        owner = {id(self._grads[n]): n for n in self._storages if n in self._grads}
        owner |= {id(blank): n for n, blank in self.blanks.items()}
        owner |= {id(self._inputs[s]): n for n, many in self._storages.items() for s in many}
        shared: list[DraftNode] = []
        own: dict[str, list[DraftNode]] = {n: [] for n in self._storages}
        for node in nodes:
            mine = next((owner[id(v)] for v in node_inputs(node) if id(v) in owner), None)
            (shared if mine is None else own[mine]).append(node)
            if mine is not None:
                owner.update((id(v), mine) for v in node.outs if v is not None)
        return shared, own


def _swap(value: object, known: Mapping[int, Val]) -> object:
    if isinstance(value, Val):
        return known.get(id(value), value)
    return tuple(_swap(v, known) for v in value) if isinstance(value, tuple) else value


def _repeat(node: DraftNode, known: dict[int, Val]) -> DraftNode:
    """The node on other inputs; what it makes joins `known`."""
    made = DraftNode(node.op, tuple((key, _swap(value, known)) for key, value in node.args), node.phase, node.path, node.source)
    for k, out in enumerate(node.outs):
        made.outs.append(None if out is None else Val(out.shape, out.dtype, made, k))
        if out is not None:
            known[id(out)] = made.outs[-1]
    return made
