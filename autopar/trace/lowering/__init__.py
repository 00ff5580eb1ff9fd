"""Lowering: from the tape to a graph.

`lower` goes over the records; the tables say what an op becomes (`decompose`, `losses`, `vocabulary`, `norms`, `linears`, `random_ops`,
`views`); `draft` is the graph while it is written; `pieces` and `copies` mend it as a whole; `finish` names and checks it.
"""
