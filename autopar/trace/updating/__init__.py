"""Updating: the optimizer's part of the step.

`update` records it on the tape, `optimizer` builds and runs the user's own, `states` and `carried` learn what it keeps from step to step,
`alike` says which parameters are updated in the same way; `factors`, `foreach` and `data_writes` bring unusual code to plain ops.
"""
