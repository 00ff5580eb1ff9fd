"""Opportunities: what a traced step allows before anything is planned.

`dataflow`: which storages are rewritten, what must wait for what; `spans`: factors that run through many nodes; `span_run`: where one of
them must synchronise; `reach`: how much of the step it covers; `find` puts them together; `as_json` prints them for machines; `networks` is
the graph for networkx.
"""
