"""Rules of ops that the table lacks.

`discover` finds them by experiment (`experiment`, `made_up` data, `rule_text`, `kept` from earlier runs), `register` takes what users state,
`region` makes one op of a function, the `referee` judges all of them, `homes` says which file registers an op.
"""
