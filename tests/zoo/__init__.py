"""The zoo: models that people train, small, from their libraries' own configs, as factories that `autopar plan FILE:NAME` takes too.

Every public function without required arguments in a file of this folder is a model and returns an `autopar.Workload`. A model whose
library is not installed is listed as skipped. `autopar zoo` runs them all; test_zoo.py runs the small tier.
"""
